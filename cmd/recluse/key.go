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
		Short: "Make, list and revoke keys for the HTTP API",
		Long: `Whoever talks to a server over the network shows a key. A key belongs to a tenant, and sees nothing of another's. Over its
own socket a server needs none: there the user is known.`,
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
		Short: "Make a key; it is shown once",
		Long: `Make a key and print it. It is stored as a hash only and cannot be shown again. The name is for people, and for the audit log.

The flags --max-... bound what all sessions and runs of the key use together; those of its tenant and of the server hold too.

Scopes: read looks; execute runs code, writes files and makes sessions, too; admin also sees keys and the audit log.`,
		Example: "  KEY=$(recluse key create ci)\n  recluse key create ci --max-memory 8g --max-sessions 10 --max-age 1d\n  recluse key create boss --scope admin --tenant '*'   # acts for every tenant", Args: cobra.ExactArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			k.Name, k.For = args[0], max(0, k.For)
			made, err := c.CreateKey(ctx, k)
			if err != nil {
				return err
			}
			if !a.json {
				a.say("key %s of tenant %s, scope %s; it is not shown again", made.ID, made.Tenant, made.Scope)
			}
			return a.result(made, "%s\n", made.Secret)
		}),
	}
	c.Flags().StringVar(&k.Scope, "scope", "execute", "read, execute or admin")
	c.Flags().StringVar(&k.Tenant, "tenant", "", "`name` of the tenant it acts for; * for all (default \"default\")")
	c.Flags().Var(&k.For, "for", "how long it is good, or none (default none)")
	completeEnum[v1.APIKey](c, "scope", "Scope")
	quotaFlags(c, &k.Quota)
	return c
}

func (a *app) keyListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List keys", Example: "  recluse key list", Args: cobra.NoArgs,
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
		state := "good"
		switch {
		case k.Revoked != nil:
			state = "revoked"
		case k.Expires != nil && k.Expires.Before(time.Now()):
			state = "expired"
		case k.Expires != nil:
			state = "good for " + console.Ahead(k.Expires)
		}
		rows = append(rows, []string{k.ID, k.Name, k.Tenant, k.Scope, console.Ago(k.Created), state})
	}
	return rows
}

func (a *app) keyRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID...", Short: "Revoke keys, at once", Example: "  recluse key revoke 5d41402abc4b2a76", Args: cobra.MinimumNArgs(1),
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
