package server

import (
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// usage returns the quotas that apply to the caller, and how much of them is in use.
func usage(c *call, _ none) (v1.QuotaReport, error) {
	return c.s.manager.Usage(c.ctx(), session.UsageQuery{Tenant: c.who.tenant, Server: c.who.operator})
}

// tenants returns all tenants that have a quota, a key or a session, sorted by name.
func (c *call) tenants() ([]v1.Tenant, error) {
	known := map[string]*v1.Tenant{}
	tenant := func(name string) *v1.Tenant {
		if known[name] == nil {
			known[name] = &v1.Tenant{Name: name}
		}
		return known[name]
	}
	stored, err := c.s.opts.Store.Tenants(c.ctx())
	if err != nil {
		return nil, err
	}
	for _, t := range stored {
		tenant(t.Name).Quota, tenant(t.Name).Network = t.Quota, t.Network
	}
	now := time.Now()
	c.s.access.mu.RLock()
	for _, k := range c.s.access.keys {
		if k.Tenant != allTenants && keyUsable(k, now) {
			tenant(k.Tenant).Keys++
		}
	}
	c.s.access.mu.RUnlock()
	for i, err := range c.s.manager.List(c.ctx(), session.ListOptions{Tenant: allTenants}) {
		if err != nil {
			return nil, err
		}
		tenant(i.Key.Tenant).Sessions++
	}
	out := make([]v1.Tenant, 0, len(known))
	for _, t := range known {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b v1.Tenant) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func listTenants(c *call, _ none) (out v1.TenantPage, err error) {
	all, err := c.tenants()
	if err != nil {
		return out, err
	}
	out.Tenants, out.Next = paged(c, all, func(t v1.Tenant) string { return t.Name })
	return out, nil
}

func showTenant(c *call, _ none) (v1.Tenant, error) {
	all, err := c.tenants()
	if err != nil {
		return v1.Tenant{}, err
	}
	name := c.r.PathValue("tenant")
	i := slices.IndexFunc(all, func(t v1.Tenant) bool { return t.Name == name })
	if i < 0 {
		return v1.Tenant{}, unknownTenant(name)
	}
	return all[i], nil
}

func unknownTenant(name string) error {
	return &v1.Error{
		Code:    v1.CodeNotFound,
		Op:      "find tenant",
		Message: "tenant " + name + " has no quota, keys or sessions",
		Remedy:  "list tenants",
	}
}

// setTenant replaces the quota of a tenant, and the bounds of its network policies.
func setTenant(c *call, in v1.TenantSettings) (v1.Tenant, error) {
	name := c.r.PathValue("tenant")
	if !validName(name) {
		return v1.Tenant{}, invalid("invalid tenant name %q", name)
	}
	if err := in.Validate(); err != nil {
		return v1.Tenant{}, invalid("%v", err)
	}
	if err := checkNetworkBounds(in.Network); err != nil {
		return v1.Tenant{}, err
	}
	err := c.s.opts.Store.SaveTenant(c.ctx(), store.Tenant{Name: name, Quota: in.Quota, Network: in.Network})
	c.s.manager.Note(c.ctx(), session.Entry{Tenant: name, Action: "tenant.set", Error: string(v1.CodeOf(err))})
	if err != nil {
		return v1.Tenant{}, err
	}
	if err := c.s.manager.NetworkChanged(c.ctx(), name); err != nil {
		return v1.Tenant{}, err
	}
	return showTenant(c, none{})
}

// checkNetworkBounds returns an error if a policy is invalid.
func checkNetworkBounds(b v1.NetworkBounds) error {
	for _, n := range []*v1.Network{b.Default, b.Max} {
		if n == nil {
			continue
		}
		if err := sandbox.CheckRules(*n); err != nil {
			return err
		}
	}
	return nil
}

// removeTenant removes the quota of a tenant, and the bounds of its network policies.
func removeTenant(c *call, _ none) (none, error) {
	name := c.r.PathValue("tenant")
	there, err := c.s.opts.Store.DropTenant(c.ctx(), name)
	c.s.manager.Note(c.ctx(), session.Entry{Tenant: name, Action: "tenant.remove", Error: string(v1.CodeOf(err))})
	if err == nil && !there {
		err = &v1.Error{
			Code:    v1.CodeNotFound,
			Op:      "remove tenant",
			Message: "tenant " + name + " has no quota",
			Remedy:  "list tenants",
		}
	}
	if err == nil {
		err = c.s.manager.NetworkChanged(c.ctx(), name)
	}
	return none{}, err
}
