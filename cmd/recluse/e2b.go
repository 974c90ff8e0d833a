package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/e2b"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/session"
)

// e2bKeyFile is the file in the data directory that keeps the key for E2B's SDKs, so that it stays the same at each
// start. Who can read it can also use the socket beside it, which needs no key.
const e2bKeyFile = "e2b-key"

// serveE2B adds the API of E2B to a server. The caller calls stop at the end.
func (a *app) serveE2B(
	ctx context.Context, cfg *config.Config, data string, m *session.Manager, st store.Store, srv *server.Server,
) (stop func(), err error) {
	secret, err := st.Secret(ctx)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(data, e2bKeyFile)
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, keyFileError(err)
	}
	a.e2bKey = strings.TrimSpace(string(b))
	if !srv.ValidKey(ctx, a.e2bKey) {
		made, err := srv.NewKey(ctx, v1.NewAPIKey{Name: "e2b", Scope: "execute", E2B: true})
		if err != nil {
			return nil, err
		}
		a.e2bKey = made.Secret
		if err := atomicfile.Write(file, []byte(a.e2bKey+"\n"), 0o600); err != nil {
			return nil, keyFileError(err)
		}
	}
	h := e2b.New(ctx, e2b.Options{
		Manager:   m,
		Access:    srv,
		Secret:    []byte("recluse tokens of e2b\n" + secret),
		Spec:      cfg.SandboxSpec(),
		MaxUpload: int64(cfg.Server.MaxUpload),
		Domain:    e2bDomain(cfg),
		CheckSpec: server.CheckRemoteSpec,
		ServePort: srv.ServePort,
	})
	srv.Front(h.Claims, h, h.Close)
	return h.Close, nil
}

func keyFileError(err error) error {
	return &v1.Error{
		Code: v1.CodeInternal, Op: "keep the key for E2B", Message: "cannot use the file of the key", Err: err,
	}
}

// e2bDomain returns the domain of ports, with the port if one is configured.
func e2bDomain(cfg *config.Config) string {
	if u, err := url.Parse(cfg.Server.PortsDomain); err == nil && u.Host != "" {
		return u.Host
	}
	return cfg.Server.PortsDomain
}

// printE2B prints the variables with which E2B's SDKs use this server. With a certificate and a domain, they reach it
// by the names below the domain; otherwise by its address.
func (a *app) printE2B(cfg *config.Config, scheme, addr string) {
	address, domain := scheme+"://"+addr, e2bDomain(cfg)
	vars := [][2]string{{"E2B_API_KEY", a.e2bKey}, {"E2B_API_URL", address}, {"E2B_SANDBOX_URL", address}}
	if scheme == "https" && domain != "" {
		_, port, _ := net.SplitHostPort(addr)
		if _, _, err := net.SplitHostPort(domain); err != nil && port != "443" {
			domain = net.JoinHostPort(domain, port)
		}
		vars = [][2]string{vars[0], {"E2B_DOMAIN", domain}}
	}
	for _, v := range vars {
		fmt.Fprintf(a.stderr, "export %s=%s\n", v[0], v[1])
	}
}
