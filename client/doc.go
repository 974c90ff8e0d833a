// Package client is a client of the HTTP API of a recluse server, over TCP or over the UNIX socket of the user's own
// background server.
//
//	c, err := client.New(client.Options{URL: "http://127.0.0.1:7070", Key: key})
//	…
//	s, _, err := c.Open(ctx, "work", v1.OpenOptions{})
//	…
//	v, err := s.Cell(ctx, v1.Cell{Code: "x = 41\nx + 1"})
//	fmt.Println(v.Result.Text()) // 42
//
// A [Session] has the methods of v1.Session and v1.Sandbox, with the same types. Verdicts are complete, and errors are
// *v1.Error with the code of the server. Input and output are streamed. After a lost connection or a restart of the
// server, the client finds operations by their ids and continues at the same offset, so that no output is lost.
package client
