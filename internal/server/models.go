package server

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/runs"
)

// defaultModel is the name by which OpenAI clients request the configured default model.
const defaultModel = "recluse"

// modelList is a list of models in OpenAI's format.
type modelList struct {
	Object string      `json:"object" doc:"always list"`
	Data   []modelNote `json:"data" doc:"the models"`
}

// modelNote describes a model. Its name is the name of the schema in the OpenAPI document.
type modelNote struct {
	ID      string `json:"id" doc:"name of the model"`
	Object  string `json:"object" doc:"always model"`
	Created int64  `json:"created" doc:"time at which the server started, in seconds since 1970"`
	OwnedBy string `json:"owned_by" doc:"name of the provider"`
}

// listModels lists the configured models, in one page as OpenAI clients expect it. The number of models is that of the
// configuration. The name "recluse" stands for the default model. Models that are not listed can be requested as
// provider/model, too.
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
