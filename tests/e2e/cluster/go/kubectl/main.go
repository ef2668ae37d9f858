// Command kubectl is the client of the cluster's version.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // whatever a kubeconfig may ask for
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
