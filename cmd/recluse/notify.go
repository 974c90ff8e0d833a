package main

import (
	"context"
	"net"
	"os"
	"strings"
)

// notify tells the system's service manager how the server is, where one listens; elsewhere it does nothing.
func notify(ctx context.Context, state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:] // a name that is no file
	}
	var d net.Dialer
	c, err := d.DialContext(context.WithoutCancel(ctx), "unixgram", path)
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state)) // a manager that does not hear it notices by itself
}
