// Command kubectl is the upstream client, built from the module proxy so that
// the tests can follow what the documentation tells people to type.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
