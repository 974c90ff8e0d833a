package server

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/runs"
)

// defaultModel is the name by which clients of OpenAI's ask for whatever is configured.
const defaultModel = "recluse"

// modelList is a list as OpenAI's clients expect it.
type modelList struct {
	Object string      `json:"object" doc:"always list"`
	Data   []modelNote `json:"data" doc:"the models"`
}

type modelNote struct {
	ID      string `json:"id" doc:"name of the model"`
	Object  string `json:"object" doc:"always model"`
	Created int64  `json:"created" doc:"when the server started, in seconds since 1970"`
	OwnedBy string `json:"owned_by" doc:"name of the provider"`
}

// listModels lists the models that are configured, in one page as OpenAI's clients expect it: there are as many as the configuration names. Under "recluse" is the default one. Others can be asked for by provider/model, too.
func listModels(c *call, k *runs.Keeper, _ none) (modelList, error) {
	names, err := k.Names(c.ctx())
	if err != nil {
		return modelList{}, err
	}
	out := modelList{Object: "list"}
	for _, name := range append([]string{defaultModel}, names...) {
		owner, _, _ := strings.Cut(name, "/")
		out.Data = append(out.Data, modelNote{ID: name, Object: "model", Created: c.s.started.Unix(), OwnedBy: owner})
	}
	return out, nil
}
