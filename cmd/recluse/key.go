package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
)

func (a *app) keyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "Create, list and revoke keys for the HTTP API",
		Long: `Create, list and revoke keys for the HTTP API.

A program that calls a server over the network must send a key. A key belongs to a tenant
and cannot see sessions of other tenants. Calls over the UNIX socket of the server need no
key.`,
		Example: `  recluse key create ci
  recluse key create dashboard --scope read --tenant team-a --for 30d
  recluse key list
  recluse key revoke 5d41402abc4b2a76`,
	}
	c.AddCommand(a.keyCreateCommand(), a.keyListCommand(), a.keyRevokeCommand())
	return c
}

func (a *app) keyCreateCommand() *cobra.Command {
	var k v1.NewAPIKey
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a key and print it once",
		Long: `Create a key and print it once.

The server stores only a hash, so the key cannot be shown again. The audit log shows the
name of the key.

Scopes:
  read     list and show sessions, read files
  execute  also create sessions, run code and write files
  admin    also manage keys and read the audit log

The quota limits what all sessions and runs of the key use together. The quotas of its
tenant and of the server also apply. --net-max narrows the network policies of its
sessions, and --net-default is the policy of sessions that are opened without one.`,
		Example: `  KEY=$(recluse key create ci)
  recluse key create ci --max-memory 8g --max-sessions 10 --max-age 1d
  recluse key create ci --net-default packages --net-max packages
  recluse key create boss --scope admin --tenant '*'   # for all tenants`,
		Args: cobra.ExactArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			k.Name, k.For = args[0], max(0, k.For)
			made, err := c.CreateKey(ctx, k)
			if err != nil {
				return err
			}
			if !a.json {
				a.notice("created key %s of tenant %s with scope %s; it is not shown again",
					made.ID, made.Tenant, made.Scope)
			}
			return a.result(made, "%s\n", made.Secret)
		}),
	}
	c.Flags().StringVar(&k.Scope, "scope", "execute", "what the key may do")
	c.Flags().StringVar(&k.Tenant, "tenant", "",
		"`name` of the tenant of the key; *: all tenants (default \"default\")")
	c.Flags().Var(&k.For, "for", "time until the key expires; none: never (default none)")
	c.Flags().BoolVar(&k.E2B, "e2b", false, "give the key the form that the SDKs of E2B require")
	completeEnum[v1.APIKey](c, "scope", "Scope")
	quotaFlags(c, &k.Quota)
	networkFlags(c, &k.Network)
	return c
}

func (a *app) keyListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List keys",
		Example: "  recluse key list",
		Args:    cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			keys, err := c.Keys(ctx)
			if err != nil {
				return err
			}
			return a.resultTable(keys, keyRows(keys))
		}),
	}
}

func keyRows(keys []v1.APIKey) [][]string {
	rows := [][]string{{"ID", "NAME", "TENANT", "SCOPE", "AGE", "STATE"}}
	for _, k := range keys {
		state := "valid"
		switch {
		case k.Revoked != nil:
			state = "revoked"
		case k.Expires != nil && k.Expires.Before(time.Now()):
			state = "expired"
		case k.Expires != nil:
			state = "valid for " + console.Ahead(k.Expires)
		}
		rows = append(rows, []string{k.ID, k.Name, k.Tenant, k.Scope, console.Ago(k.Created), state})
	}
	return rows
}

func (a *app) keyRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID...",
		Short:   "Revoke keys",
		Long:    "Revoke keys. They stop working at once.",
		Example: "  recluse key revoke 5d41402abc4b2a76",
		Args:    cobra.MinimumNArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			for _, id := range args {
				if err := c.RevokeKey(ctx, id); err != nil {
					return err
				}
			}
			return a.result(map[string][]string{"revoked": args}, "")
		}),
	}
}
