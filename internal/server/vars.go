package server

import (
	"maps"
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxVarsPage is how much a page of variables may hold besides its first one: each may be as long as session.MaxVarLength.
const maxVarsPage = 8 << 20

func listVars(c *call, _ none) (v1.VarPage, error) {
	ses, err := c.session()
	if err != nil {
		return v1.VarPage{}, err
	}
	vars, err := ses.Vars(c.ctx())
	if err != nil {
		return v1.VarPage{}, err
	}
	names, next, err := paged(c, slices.Collect(maps.Keys(vars)), func(name string) string { return name })
	out := v1.VarPage{Vars: map[string]string{}, Next: next}
	size := 0
	for i, name := range names {
		if size += len(vars[name]); i > 0 && size > maxVarsPage {
			out.Next = names[i-1]
			break
		}
		out.Vars[name] = vars[name]
	}
	return out, err
}

func getVar(c *call, _ none) (v1.Var, error) {
	ses, err := c.session()
	if err != nil {
		return v1.Var{}, err
	}
	v, err := ses.Var(c.ctx(), c.r.PathValue("name"))
	return v1.Var{Value: v}, err
}

func setVar(c *call, in v1.Var) (none, error) {
	ses, err := c.session()
	if err != nil {
		return none{}, err
	}
	return none{}, ses.SetVar(c.ctx(), c.r.PathValue("name"), in.Value)
}

func deleteVar(c *call, _ none) (none, error) {
	ses, err := c.session()
	if err != nil {
		return none{}, err
	}
	return none{}, ses.DeleteVar(c.ctx(), c.r.PathValue("name"))
}
