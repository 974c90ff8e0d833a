package server

import (
	"github.com/recluse-dev/recluse/internal/api"
)

func listVars(c *call, _ none) (api.Vars, error) {
	ses, err := c.session()
	if err != nil {
		return api.Vars{}, err
	}
	vars, err := ses.Vars(c.ctx())
	if vars == nil {
		vars = map[string]string{}
	}
	return api.Vars{Vars: vars}, err
}

func getVar(c *call, _ none) (api.Var, error) {
	ses, err := c.session()
	if err != nil {
		return api.Var{}, err
	}
	v, err := ses.Var(c.ctx(), c.r.PathValue("name"))
	return api.Var{Value: v}, err
}

func setVar(c *call, in api.Var) (none, error) {
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
