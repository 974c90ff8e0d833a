//go:build linux

package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/network"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// networkHost implements network.Host with the currently attached host.
type networkHost struct{ *Agent }

func (h networkHost) current() (*wire.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == nil {
		return nil, os.ErrClosed
	}
	return h.session, nil
}

// Lookup implements network.Host.
func (h networkHost) Lookup(name string, o *wire.Owner) wire.Answer {
	s, err := h.current()
	if err != nil {
		return wire.Answer_ANSWER_FAILED
	}
	st, err := s.Open()
	if err != nil {
		return wire.Answer_ANSWER_FAILED
	}
	f := &wire.Frame{}
	err = st.Send(&wire.Request{Call: &wire.Request_Lookup{Lookup: &wire.Lookup{Name: name, Owner: o}}})
	if err == nil {
		err = st.Receive(f)
	}
	if err != nil || !f.Last {
		st.Close()
		return wire.Answer_ANSWER_FAILED
	}
	st.Release()
	if f.GetFound() == nil {
		return wire.Answer_ANSWER_FAILED
	}
	return f.GetFound().Answer
}

// Connect implements network.Host.
func (h networkHost) Connect(c *wire.Connect) (*wire.Stream, error) {
	s, err := h.current()
	if err != nil {
		return nil, err
	}
	st, err := s.OpenConnection()
	if err != nil {
		return nil, err
	}
	if err := st.Send(&wire.Request{Call: &wire.Request_Connect{Connect: c}}); err != nil {
		st.Close()
		return nil, err
	}
	return st, nil
}

// applyNetwork switches the network on or off.
func (a *Agent) applyNetwork(n *wire.Network) *wire.Error {
	if !a.cfg.Network {
		return wire.Errorf("not_supported", "this sandbox was made without a network")
	}
	if len(n.Certificates) > 0 {
		file := filepath.Join(a.cfg.State, launch.CertificatesName)
		if err := network.WriteCertificates(file, a.envMap(nil)[certificatesEnv], n.Certificates); err != nil {
			return wire.Errorf("failed", "write the certificates of the host: %v", err)
		}
	}
	ports := make([]uint16, 0, len(n.Ports))
	for _, p := range n.Ports {
		ports = append(ports, uint16(p)) // the host sends ports
	}
	switch err := a.network.Apply(n.On, ports); {
	case errors.Is(err, network.ErrNoRedirection):
		return wire.Errorf("not_supported", "%v", err)
	case err != nil:
		return wire.Errorf("failed", "set up the network: %v", err)
	}
	a.adopt(n.Identity)
	return nil
}

// certificatesEnv is the environment variable in which an image names the certificates that it trusts.
const certificatesEnv = "SSL_CERT_FILE"

// maxPortWait bounds the wait for a port. The host repeats the call to wait longer.
const maxPortWait = time.Hour

// ports lists the ports on which programs listen, or waits for one of them.
func (a *Agent) ports(ctx context.Context, st *wire.Stream, req *wire.Ports) bool {
	if req.WaitPort == 0 {
		list := &wire.PortList{Ports: network.Ports(a.operationOf)}
		return last(st, &wire.Frame{Body: &wire.Frame_Ports{Ports: list}})
	}
	ctx, cancel := context.WithTimeout(ctx, min(max(0, time.Duration(req.WaitNs)), maxPortWait))
	defer cancel()
	ctx, stop := cancelOnClose(ctx, st)
	defer stop()
	list := &wire.PortList{Ports: network.AwaitPort(ctx, req.WaitPort, a.operationOf)}
	last(st, &wire.Frame{Body: &wire.Frame_Ports{Ports: list}})
	return false // cancelOnClose reads until the end of the stream
}

// operationOf returns the ID of the operation that a process belongs to, or "" if it is unknown: the operation has
// ended and left the process running.
func (a *Agent) operationOf(pid int) string {
	owners := a.nannies.Owners()
	for pid > 1 && pid != os.Getpid() {
		if o, ok := owners[pid].(*operation.Operation); ok && o != nil {
			if o.Finished() {
				return ""
			}
			return o.ID
		}
		p, ok := proc.Get(pid)
		if !ok {
			return ""
		}
		pid = p.PPID
	}
	return ""
}
