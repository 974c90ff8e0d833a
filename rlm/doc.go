// Package rlm answers questions over contexts that are far larger than a model's window.
//
// A run loads the context into a sandbox as a Python variable. A model then writes code for that sandbox, turn by
// turn. The code inspects the context and sends pieces of it to models, one or many at once (llm_query), or to child
// runs (rlm_query). The model itself sees only a description of the context, and what its code prints. It submits the
// answer by calling a function in that code.
//
//	e, err := rlm.New(rlm.Options{
//		Models:    rlm.Routed(routing), // from llm.Set.Route
//		Sandboxes: rlm.FromBackend(backend),
//	})
//	…
//	res, err := e.Run(ctx, rlm.Question{
//		Query:  "Which three people are mentioned most?",
//		Inputs: []rlm.Input{rlm.File("big.txt")},
//	})
//
// One budget is shared by a run and all its child runs. The maximum cost of a call is reserved before the call and
// replaced by the actual cost after it, so that concurrent calls cannot spend the same token twice. The result of a
// run that ends without an answer has the Reason, the best partial answer, the usage and the events.
//
// Events are written as they happen. With them a run can be watched while it runs (Run.Events), resumed after its
// program was killed (Engine.Resume), forked at one of its turns (Engine.Fork), replayed without a model
// (Engine.Replay), and exported (Engine.Export).
//
// Errors in the code are shown to the model, which can correct them. A lost sandbox ends the run.
package rlm
