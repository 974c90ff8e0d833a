package server

import (
	"maps"
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// maxVarsPage is the maximum size of a page of variables in bytes. The first variable is always in the page, because a
// single one may have session.MaxVarLength bytes.
const maxVarsPage = 8 << 20

func listVars(c *call, ses *session.Session, _ none) (v1.VarPage, error) {
	vars, err := ses.Vars(c.ctx())
	if err != nil {
		return v1.VarPage{}, err
	}
	names, next := paged(c, slices.Collect(maps.Keys(vars)), func(name string) string { return name })
	out := v1.VarPage{Vars: map[string]string{}, Next: next}
	size := 0
	for i, name := range names {
		if size += len(vars[name]); i > 0 && size > maxVarsPage {
			out.Next = names[i-1]
			break
		}
		out.Vars[name] = vars[name]
	}
	return out, nil
}

func getVar(c *call, ses *session.Session, _ none) (v1.Var, error) {
	v, err := ses.Var(c.ctx(), c.r.PathValue("name"))
	return v1.Var{Value: v}, err
}

func setVar(c *call, ses *session.Session, in v1.Var) (none, error) {
	return none{}, ses.SetVar(c.ctx(), c.r.PathValue("name"), in.Value)
}
