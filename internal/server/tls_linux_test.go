package server_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestOverTLS(t *testing.T) {
	made := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer made.Close()
	k := servertest.New(t, server.Options{TLS: &tls.Config{Certificates: made.TLS.Certificates}})
	open(t, k, "a", "work")
	c, err := client.New(client.Options{URL: strings.Replace(k.URL, "http:", "https:", 1), Key: k.Key("a", "execute"), HTTPClient: made.Client()})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Session("work").Cell(t.Context(), sandbox.Cell{Code: "input()", RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("x\n")}})
	if err != nil || v.Result.Text() != "'x'" {
		t.Errorf("%v %v", v, err)
	}
	old := &tls.Config{RootCAs: made.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, MaxVersion: tls.VersionTLS11, ServerName: "example.com"}
	d := tls.Dialer{Config: old, NetDialer: &net.Dialer{}}
	if conn, err := d.DialContext(context.Background(), "tcp", strings.TrimPrefix(k.URL, "http://")); err == nil {
		conn.Close()
		t.Error("an old protocol was spoken")
	}
	made.Client().CloseIdleConnections()
}
