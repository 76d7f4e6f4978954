// Command crdcheck says what a Kubernetes 1.28 API server would say to the
// creation of CustomResourceDefinitions: it runs the server's own code, without
// a server. Fields that this release does not know are errors, as they are for
// a client that asks for strict validation.
//
// It checks the definitions alone. Names that another definition has taken, and
// what admission adds, only a server can see.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: crdcheck FILE...")
		os.Exit(2)
	}
	failed := false
	for _, path := range os.Args[1:] {
		for _, err := range checkFile(path) {
			fmt.Printf("%s: %v\n", path, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// checkFile checks every document of a file. A file without any is an error:
// nothing would have been checked.
func checkFile(path string) []error {
	content, err := os.ReadFile(path)
	if err != nil {
		return []error{err}
	}
	var errs []error
	checked := 0
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return append(errs, err)
		}
		checked++
		errs = append(errs, check(document)...)
	}
	if checked == 0 {
		errs = append(errs, errors.New("no document in this file"))
	}
	return errs
}

// check does what the server does with the body of a POST, in its order:
// decode and default, convert to the internal version, prepare (which fills
// status.storedVersions), validate.
func check(document []byte) []error {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	object, kind, err := decoder.Decode(document, nil, nil)
	if err != nil {
		return []error{err}
	}
	if _, ok := object.(*v1.CustomResourceDefinition); !ok {
		return []error{fmt.Errorf("%v is not served: want %v CustomResourceDefinition", kind, v1.SchemeGroupVersion)}
	}
	scheme.Default(object)
	crd := &apiextensions.CustomResourceDefinition{}
	if err := scheme.Convert(object, crd, nil); err != nil {
		return []error{err}
	}
	strategy := customresourcedefinition.NewStrategy(scheme)
	strategy.PrepareForCreate(context.Background(), crd)
	var errs []error
	for _, err := range strategy.Validate(context.Background(), crd) {
		errs = append(errs, err)
	}
	return errs
}
