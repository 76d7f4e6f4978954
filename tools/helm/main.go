// Command helm is the upstream client, built from the module proxy so that the
// tests need no download of release archives. It renders charts and installs
// ours on the tests' API servers.
package main

import (
	"os"

	helm "helm.sh/helm/v4/pkg/cmd"
)

func main() {
	command, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err == nil {
		err = command.Execute()
	}
	if err != nil {
		os.Exit(1)
	}
}
