// Package llm asks language models: OpenAI-compatible, Anthropic and Ollama ones, scripted ones, and recorded ones.
package llm
