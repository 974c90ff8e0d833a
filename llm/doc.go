// Package llm asks language models: OpenAI-compatible, Anthropic and Ollama ones, an agent's command line, scripted ones, and
// recorded ones.
//
// A Set finds models by name. It takes keys from the environment and finds Ollama on this machine by itself, so an empty
// configuration is mostly enough:
//
//	set, err := llm.Open(llm.Config{})
//	…
//	defer set.Close()
//	m, err := set.Model("anthropic/claude-sonnet-5-5") // or set.Default(ctx)
//	…
//	r, err := m.Complete(ctx, llm.Request{Messages: []llm.Message{{Role: llm.User, Content: "Why is the sky blue?"}}})
//	fmt.Println(r.Text, r.Usage.Cost)
//
// A name is provider/model. Several with commas between are a fall-back list. Any server that speaks OpenAI's protocol is a provider once
// it is configured with a base URL; OPENAI_BASE_URL moves the built-in one.
//
// Failures are a *sandbox.Error with one of this package's codes, say what to do, and never hold a key. A call is tried again where that can help, as long as
// nothing of its reply was heard; what a broken or cut call has cost is in the reply beside the error, as far as it can be known, and
// marked where we had to estimate it.
//
// A Scripted model answers by rules and a Cassette replays what was recorded, so that whatever uses models can be tried without one.
package llm
