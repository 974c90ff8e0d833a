package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
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
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.keyCreateCommand(), a.keyListCommand(), a.keyRevokeCommand())
	return c
}

func (a *app) keyCreateCommand() *cobra.Command {
	var (
		k      v1.NewAPIKey
		lasts  v1.Duration
		tenant string
	)
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a key; it is shown once",
		Long: `Make a key and print it. It is stored as a hash only and cannot be shown again. The name is for people, and for the audit log.

Scopes: read looks; execute runs code, writes files and makes sessions, too; admin also sees keys and the audit log.`,
		Example: "  KEY=$(recluse key create ci)\n  recluse key create boss --scope admin --tenant '*'   # acts for every tenant", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, done, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			k.Name, k.Tenant = args[0], tenant
			if time.Duration(lasts) > 0 {
				k.For = lasts
			}
			made, err := cl.CreateKey(c.Context(), k)
			if err != nil {
				return err
			}
			if a.json {
				return console.WriteJSON(a.stdout, made)
			}
			fmt.Fprintln(a.stdout, made.Secret)
			a.say("key %s of tenant %s, scope %s; it is not shown again", made.ID, made.Tenant, made.Scope)
			return nil
		},
	}
	c.Flags().StringVar(&k.Scope, "scope", "execute", "read, execute or admin")
	c.Flags().StringVar(&tenant, "tenant", "", "`name` of the tenant it acts for; * for all (default \"default\")")
	c.Flags().Var(&lasts, "for", "how long it is good, or none (default none)")
	return c
}

func (a *app) keyListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List keys", Example: "  recluse key list", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, done, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			keys, err := cl.Keys(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				return console.WriteJSON(a.stdout, keys)
			}
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
			return console.Table(a.stdout, rows)
		},
	}
}

func (a *app) keyRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID...", Short: "Revoke keys, at once", Example: "  recluse key revoke 5d41402abc4b2a76", Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, done, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			for _, id := range args {
				if err := cl.RevokeKey(c.Context(), id); err != nil {
					return err
				}
			}
			if a.json {
				return console.WriteJSON(a.stdout, map[string][]string{"revoked": args})
			}
			return nil
		},
	}
}
