// Command etcd is the upstream server, built from the module proxy so that
// the tests need no download of release archives.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
