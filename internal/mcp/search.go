package mcp

import (
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// entry is a tool in a search.
type entry struct {
	Name        string         `json:"name"`
	Description string         `json:"description"`
	Server      string         `json:"server_name,omitempty"`
	Tags        []string       `json:"tags,omitempty"`
	InputSchema map[string]any `json:"input_schema,omitempty"`
}

type searchArgs struct {
	Query string  `json:"query" doc:"words to search for; tools with more of them come first"`
	Tools []entry `json:"tools,omitempty" doc:"tools to search instead of this server's tools"`
	Limit int     `json:"limit,omitempty" doc:"maximum number of results; left out: 10"`
}

type searchResult struct {
	Query string  `json:"query"`
	Count int     `json:"count"`
	Tools []entry `json:"tools"`
}

func (srv *mcpServer) addSearch() {
	add(srv, tool{
		name: "search_tools", title: "Search tools", readOnly: true, idempotent: true,
		description: "Find tools by words, among this server's tools or among the tools in the arguments.",
		shape:       func(in *jsonschema.Schema) { setRange(in, "limit", 0, 1000) },
	}, func(c *call, in searchArgs) (searchResult, error) {
		corpus := in.Tools
		if corpus == nil {
			corpus = c.srv.tools
		}
		if in.Limit == 0 {
			in.Limit = 10
		}
		found := search(
			in.Query,
			corpus,
			func(e entry) []string { return append([]string{e.Name, e.Description, e.Server}, e.Tags...) },
		)
		found = found[:min(len(found), in.Limit)]
		return searchResult{Query: in.Query, Count: len(found), Tools: found}, nil
	})
}

// search returns the items whose texts contain at least one word of the query, those with most words first. A word in
// the first text, the name, counts twice.
func search[T any](query string, corpus []T, texts func(T) []string) []T {
	words := strings.Fields(strings.ToLower(query))
	type hit struct {
		item  T
		score int
	}
	var hits []hit
	for _, item := range corpus {
		score := 0
		for i, text := range texts(item) {
			text = strings.ToLower(text)
			for _, w := range words {
				if strings.Contains(text, w) {
					score++
					if i == 0 {
						score++
					}
				}
			}
		}
		if score > 0 {
			hits = append(hits, hit{item, score})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return b.score - a.score })
	out := make([]T, 0, len(hits))
	for _, h := range hits {
		out = append(out, h.item)
	}
	return out
}
