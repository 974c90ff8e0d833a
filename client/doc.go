// Package client speaks the HTTP API of a recluse server, over TCP or the UNIX socket of the user's own background server.
//
//	c, err := client.New(client.Options{URL: "http://127.0.0.1:7070", Key: key})
//	…
//	s, _, err := c.Open(ctx, "work", v1.OpenOptions{})
//	…
//	v, err := s.Cell(ctx, v1.Cell{Code: "x = 41\nx + 1"})
//	fmt.Println(v.Result.Text()) // 42
//
// A [Session] has the methods of v1.Session and v1.Sandbox, with the same types: verdicts come back without loss, errors as
// *v1.Error with the server's code. Input and output stream. A connection that breaks, or a server that is killed and
// started again, costs time and no output: operations have ids, and are followed from where they were.
package client
