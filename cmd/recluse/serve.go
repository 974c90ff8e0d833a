package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/daemon"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/session"
)

// detachWait is how long a server that exits may take to detach from its sandboxes.
const detachWait = 20 * time.Second

type serveOptions struct {
	backendFlags
	background bool
}

func (a *app) serveCommand() *cobra.Command {
	var (
		o              serveOptions
		terraphim, e2b bool
	)
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the server in the foreground, optionally with HTTP",
		Long: `Run the server in the foreground, optionally with HTTP.

It replaces the background server, which exits. With --listen it also serves HTTP. An
address that other machines can reach requires that a key exists (recluse key create).

After SIGTERM or Ctrl-C the server waits for running requests and exits. Sessions stay,
and the next server takes them over. After a second signal it exits at once.

The log is written to stderr, by default as one JSON object a line (log.format).`,
		Example: `  recluse serve --listen 127.0.0.1:7070
  recluse serve --listen 0.0.0.0:7070 --tls-cert cert.pem --tls-key key.pem
  curl -H "Authorization: Bearer $KEY" http://127.0.0.1:7070/v1/sessions`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return a.reportNotServing(&o, err)
			}
			s := &cfg.Server
			for name, setting := range map[string]*string{
				"listen":   &s.Listen,
				"socket":   &s.Socket,
				"tls-cert": &s.TLSCert,
				"tls-key":  &s.TLSKey,
			} {
				if flag := c.Flags().Lookup(name); flag.Changed {
					*setting = flag.Value.String()
				}
			}
			if c.Flags().Changed("e2b") {
				s.E2B = e2b
			}
			if s.E2B && s.Listen == "" && !o.background {
				return usage("--e2b requires --listen: the SDKs use HTTP")
			}
			if c.Flags().Changed("terraphim-names") {
				s.TerraphimNames = terraphim
			}
			if (cfg.Server.TLSCert == "") != (cfg.Server.TLSKey == "") {
				return usage("--tls-cert and --tls-key must be given together")
			}
			return a.reportNotServing(&o, a.serve(c.Context(), cfg, &o))
		},
	}
	f := c.Flags()
	f.String("listen", "", "`address` to serve HTTP on, such as 127.0.0.1:7070 (default none)")
	f.String("socket", "", "`path` of the UNIX socket of the API (default in the data directory)")
	f.String("tls-cert", "", "`file` with the TLS certificate for --listen")
	f.String("tls-key", "", "`file` with the key of the TLS certificate")
	f.BoolVar(&e2b, "e2b", false, "also serve the API of E2B, for its SDKs, and print the variables that they need")
	f.BoolVar(&terraphim, "terraphim-names", false,
		"also offer the MCP tools by their terraphim names (rlm_code, rlm_bash, …)")
	f.BoolVar(&o.background, "background", false, "run as the background server, which another command has started")
	_ = f.MarkHidden("background")
	o.register(f)
	return c
}

// reportNotServing reports to the program that started a background server why the server does not run.
func (a *app) reportNotServing(o *serveOptions, err error) error {
	if err == nil || !o.background {
		return err
	}
	_ = daemon.ReportStart(os.Stdout, err) // the other program has closed the pipe if the server had already started
	a.printError(err)
	return exit(statusFailure)
}

// serve runs a server until it exits.
func (a *app) serve(ctx context.Context, cfg *config.Config, o *serveOptions) (err error) {
	req, err := o.requirements(a)
	if err != nil {
		return err
	}
	ctx = a.watch(ctx)
	data, err := xdg.Data()
	if err != nil {
		return err
	}
	p, err := daemon.NewPlace(data, cfg.Server.Socket)
	if err != nil {
		return err
	}
	out := a.stderr
	if o.background {
		f, err := p.OpenLog()
		if err != nil {
			return err
		}
		defer f.Close()
		out = f
	}
	log := serverLog(out, cfg.Log)
	ho := daemon.HostOptions{Stamp: stamp(cfg), Background: o.background, Listen: cfg.Server.Listen}
	if o.background {
		ho.IdleExit = max(0, cfg.Server.IdleExit.Std())
		ho.Listen = "" // a background server is only for its own user
	}
	host, err := p.Claim(ctx, ho)
	if err != nil {
		return cause(ctx, err)
	}
	defer host.Release()
	stopTraces, err := traces(ctx, cfg.Telemetry, thisBuild().Version)
	if err != nil {
		return err
	}
	defer stopTraces()

	backends := a.backends(ctx)
	questions := cfg.Gate.Approvals()
	checker, err := cfg.Gate.Open(questions)
	if err != nil {
		return err
	}
	defer checker.Close()
	st, err := store.OpenSQLite(ctx, data)
	if err != nil {
		return cause(ctx, err)
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	mo := managerOptions(backends, data, cfg, req, log, o.background)
	mo.Gate, mo.Approvals, mo.Store = checker, questions, st
	m, err := session.New(ctx, mo)
	if err != nil {
		return cause(ctx, err)
	}
	var srv *server.Server
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachWait)
		defer cancel()
		err = errors.Join(err, m.Detach(ctx))
		if srv != nil {
			srv.Wait()
		}
	}()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	so, err := serverOptions(cfg, m, log)
	if err != nil {
		return err
	}
	if so.Runs, err = a.keeper(cfg, data, backends, req, checker, m, log); err != nil {
		return err
	}
	defer so.Runs.Close() // before the manager, because runs may work in sessions
	so.Store, so.Shutdown, so.Approvals = st, stop, questions
	so.Health = func(ctx context.Context) error {
		_, _, err := backend.Select(ctx, backends, req)
		return err
	}
	if srv, err = server.New(ctx, so); err != nil {
		return err
	}
	mcpServer := mcpHandler(srv, so, cfg)
	defer mcpServer.Close()
	srv.Mount("/mcp", mcpServer, mcpServer.Close)
	if cfg.Server.E2B && !o.background {
		stop, err := a.serveE2B(ctx, cfg, data, m, st, srv)
		if err != nil {
			return err
		}
		defer stop()
	}
	return a.answer(serving, cfg, host, m, srv, log, o.background)
}

// managerOptions returns the options of the session manager.
func managerOptions(
	backends []sandbox.Backend,
	data string,
	cfg *config.Config,
	req backend.Requirements,
	log *slog.Logger,
	background bool,
) session.Options {
	req.Logger = log
	o := session.Options{
		Backends:    backends,
		Require:     req,
		DataDir:     data,
		Policy:      cfg.Session.Policy(),
		Quota:       cfg.ServerQuota(),
		RemoteQuota: config.MachineQuota(data),
		TenantQuota: config.TenantQuota(data),

		NetworkDefault: cfg.Network.Usual(),

		Pool:        cfg.Pool.Options(),
		NoPool:      !cfg.Pool.Enabled,
		Webhook:     string(cfg.Webhook.URL),
		AuditKept:   cfg.Audit.Keep.Std(),
		RecordsKept: cfg.Session.Remember.Std(),
		Logger:      log,
	}
	// A background server keeps no sandbox warm from its start: a single command may have started it.
	if !background && cfg.Pool.Enabled {
		o.Warm = []sandbox.Spec{cfg.SandboxSpec()}
	}
	return o
}

// serverOptions returns the options of the HTTP server.
func serverOptions(cfg *config.Config, m *session.Manager, log *slog.Logger) (server.Options, error) {
	o := server.Options{
		Manager:       m,
		Logger:        log,
		Limits:        cfg.Server.Limits(),
		Drain:         cfg.Server.Drain.Std(),
		Version:       thisBuild().Version,
		PublicMetrics: cfg.Telemetry.PublicMetrics,
		Origins:       cfg.Server.CORSOrigins,
		Hosts:         cfg.Server.Hosts,
		PortsDomain:   cfg.Server.PortsDomain,
		TerminalGrace: cfg.Server.TerminalGrace.Std(),
	}
	// A name that the user listens on is one of the server's.
	if host, _, err := net.SplitHostPort(cfg.Server.Listen); err == nil && host != "" && !strings.Contains(host, ":") {
		o.Hosts = append(slices.Clone(o.Hosts), host)
	}
	if cfg.Server.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.Server.TLSCert, cfg.Server.TLSKey)
		if err != nil {
			return o, &v1.Error{
				Code:    config.CodeInvalid,
				Op:      "read the TLS certificate",
				Message: "cannot load certificate and key",
				Remedy:  "check server.tls_cert and server.tls_key, or --tls-cert and --tls-key",
				Err:     err,
			}
		}
		o.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	return o, nil
}

// answer serves until ctx ends, another server takes over, or a background server has no sessions left.
func (a *app) answer(
	ctx context.Context,
	cfg *config.Config,
	host *daemon.Host,
	m *session.Manager,
	srv *server.Server,
	log *slog.Logger,
	background bool,
) error {
	listeners, err := a.listeners(ctx, cfg, host, srv, background)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- srv.Serve(serving, l) }()
	}
	err = host.Ready(ctx, func() bool { return occupied(ctx, m) || srv.Busy() })
	if err == nil && background {
		err = daemon.ReportStart(os.Stdout, nil)
	}
	if err != nil {
		stop()
	}
	_, _ = systemd.SdNotify(false, systemd.SdNotifyReady) // systemd notices a failure by its own timeout
	for _, l := range listeners {
		log.Info("listening", "address", l.Addr().String(), "network", l.Addr().Network(), "pid", os.Getpid())
	}
	left, why := len(listeners), "requested by a client"
	select {
	case <-serving.Done():
		if i, ok := errors.AsType[interrupted](context.Cause(ctx)); ok {
			why = i.Error()
		}
	case <-host.Leaving():
		why = "another server takes over, or no session is left"
	case e := <-ended:
		left--
		err, why = errors.Join(err, e), "a listener failed"
	}
	log.Info("exiting; sessions stay for the next server", "why", why)
	_, _ = systemd.SdNotify(false, systemd.SdNotifyStopping)
	host.StopAnswering()
	stop()
	for range left {
		err = errors.Join(err, <-ended)
	}
	return err
}

// listeners opens the socket and, if it is configured, the HTTP address.
func (a *app) listeners(
	ctx context.Context,
	cfg *config.Config,
	host *daemon.Host,
	srv *server.Server,
	background bool,
) ([]net.Listener, error) {
	l, err := host.Socket(ctx)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "listen", Message: "cannot create the socket", Err: err}
	}
	out := []net.Listener{l}
	addr := cfg.Server.Listen
	if addr == "" || background {
		return out, nil
	}
	if err := server.CheckListen(addr, srv.HaveKeys()); err != nil {
		l.Close()
		return nil, err
	}
	var lc net.ListenConfig
	t, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		l.Close()
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "listen on " + addr,
			Message: "cannot use the address",
			Remedy:  "choose another address with --listen",
			Err:     err,
		}
	}
	scheme := "http"
	if cfg.Server.TLSCert != "" {
		scheme = "https"
	}
	a.listening.add(t.Addr())
	a.notice("listening on %s://%s", scheme, t.Addr())
	if cfg.Server.E2B {
		a.printE2B(cfg, scheme, t.Addr().String())
	}
	return append(out, t), nil
}

// occupied reports whether a session needs a running server. Hibernated and lost sessions do not: the next call to them
// starts a server.
func occupied(ctx context.Context, m *session.Manager) bool {
	o := session.ListOptions{
		Tenant: "*",
		Limit:  1,
		States: []session.State{v1.StateCreating, v1.StateReady, v1.StateExecuting, v1.StatePaused},
	}
	for range m.List(ctx, o) {
		return true
	}
	return false
}

// serverLog returns the log of a server, which writes to w.
func serverLog(w io.Writer, l config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // the configuration is valid
	o := &slog.HandlerOptions{Level: level}
	if l.Format == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}
