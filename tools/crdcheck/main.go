// Command crdcheck validates CustomResourceDefinitions like a Kubernetes 1.28 API
// server does on creation: it runs the server's own code, without a server. Unknown
// fields are errors, as with strict field validation.
//
// It checks each definition on its own. It does not detect conflicts with the names of
// other definitions, and does not run admission plugins.
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

// checkFile checks every document of a file. A file without documents is an error,
// because nothing would have been checked.
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
		errs = append(errs, errors.New("the file contains no document"))
	}
	return errs
}

// check processes a document like the body of a POST request: decode and default,
// convert to the internal version, prepare (which fills status.storedVersions),
// validate.
func check(document []byte) []error {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	object, kind, err := decoder.Decode(document, nil, nil)
	if err != nil {
		return []error{err}
	}
	if _, ok := object.(*v1.CustomResourceDefinition); !ok {
		return []error{fmt.Errorf("%v is not served: expected %v CustomResourceDefinition", kind, v1.SchemeGroupVersion)}
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
