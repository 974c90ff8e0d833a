// Command recluse runs code in sandboxes. Each verb has its own file here; the logic is in packages.
package main

import (
	"context"
	"os"

	_ "github.com/recluse-dev/recluse/internal/startup" // answers hooks before main begins
	_ "github.com/recluse-dev/recluse/internal/startup/collector"
)

func main() {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(a.main(context.Background(), os.Args[1:]))
}
