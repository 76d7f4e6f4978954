// Command clustermesh-apiserver is Cilium's, built from the module proxy so that the
// tests need no image.
//
// Its own etcdinit expects etcd at a fixed path and port. The command users runs the
// same code against an etcd that is already running.
package main

import (
	"context"
	"os"
	"time"

	"github.com/cilium/cilium/clustermesh-apiserver/clustermesh"
	"github.com/cilium/cilium/clustermesh-apiserver/kvstoremesh"
	"github.com/cilium/cilium/pkg/hive"
	etcdinit "github.com/cilium/cilium/pkg/kvstore/etcdinit"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// deadline limits the wait for an etcd that does not answer.
const deadline = 30 * time.Second

func main() {
	root := &cobra.Command{Use: "clustermesh-apiserver", SilenceUsage: true}
	root.AddCommand(
		clustermesh.NewCmd(hive.New(clustermesh.Cell)),
		kvstoremesh.NewCmd(hive.New(kvstoremesh.Cell)),
		users(),
	)
	if root.Execute() != nil {
		os.Exit(1)
	}
}

func users() *cobra.Command {
	var endpoint, cluster string
	var tls transport.TLSInfo
	command := &cobra.Command{
		Use:   "users",
		Short: "Create the users and roles of a mesh in a new etcd",
		RunE: func(command *cobra.Command, _ []string) error {
			return makeUsers(command.Context(), endpoint, cluster, tls)
		},
	}
	flags := command.Flags()
	flags.StringVar(&endpoint, "endpoint", "", "address of etcd")
	flags.StringVar(&cluster, "cluster-name", "", "cluster name, for the name of the admin user")
	flags.StringVar(&tls.ServerName, "server-name", "", "host name in the certificate of etcd")
	flags.StringVar(&tls.TrustedCAFile, "trusted-ca-file", "", "file with the CA of that certificate")
	flags.StringVar(&tls.CertFile, "cert-file", "", "file with a client certificate")
	flags.StringVar(&tls.KeyFile, "key-file", "", "file with the key of the client certificate")
	return command
}

func makeUsers(parent context.Context, endpoint, cluster string, tls transport.TLSInfo) error {
	ctx, cancel := context.WithTimeout(parent, deadline)
	defer cancel()
	config, err := tls.ClientConfig()
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{endpoint}, TLS: config})
	if err != nil {
		return err
	}
	defer client.Close()
	return etcdinit.ClusterMeshEtcdInit(ctx, logrus.NewEntry(logrus.New()), client, cluster)
}
