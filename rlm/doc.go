// Package rlm answers questions over contexts that are far larger than a model's window.
//
// A run puts the context into a sandbox as a variable and lets a model write code there, turn by turn. The code looks at the context, and
// asks models about the pieces it has chosen (llm_query), alone or many at once, or lets whole child runs work on them (rlm_query). The model
// itself sees only what its code prints. It hands in the answer by a call in that code.
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
// One budget holds for the whole tree of a run: what a call may cost is reserved before it and settled after it, so that calls at once
// cannot spend the same token twice. A run that ends without an answer, for whichever Reason, still gives the best that there was, what it took,
// and its events.
//
// Events are written as they happen. From them a run can be watched while it goes on (Run.Events), resumed after its program was killed (Engine.Resume),
// tried again from one of its turns (Engine.Fork), run again without any model (Engine.Replay), and exported (Engine.Export).
//
// What the code did wrong is shown to the model, which can do better; a sandbox that broke ends the run.
package rlm
