// Package llm calls language models: over the APIs of OpenAI (and compatible servers), Anthropic and Ollama, and
// through agent programs such as claude and codex. It also has scripted models and recordings for tests.
//
// A Set finds models by name. It takes keys from the environment and finds Ollama on this machine, so an empty
// configuration is often enough:
//
//	set, err := llm.Open(llm.Config{})
//	…
//	defer set.Close()
//	m, err := set.Model("anthropic/claude-sonnet-5-5") // or set.Default(ctx)
//	…
//	r, err := m.Complete(ctx, llm.Request{Messages: []llm.Message{{Role: llm.User, Content: "Why is the sky blue?"}}})
//	fmt.Println(r.Text, r.Usage.Cost)
//
// The name of a model is provider/model. Several names, separated by commas, are a fallback list. Any server with
// OpenAI's API becomes a provider when it is configured with a base URL. OPENAI_BASE_URL changes the address of the
// provider openai.
//
// Errors are of type *v1.Error, have a code that begins with model_, and never contain a key. A call is retried where
// that can help, as long as Request.Delta has not received a part of the reply. The usage of a failed or cut call is in
// the reply that is returned with the error, and is marked if it is estimated.
//
// A Scripted model answers by rules, and a Cassette replays recorded calls, so that programs can be tested without a
// model.
package llm
