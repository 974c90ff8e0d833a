// Package api holds the words of the HTTP API that server and client share: bodies of requests and answers, problems, and the frames
// of streams. It knows neither side.
//
// Times that are given are texts ("90s", "none"), because people write them; times that come back are nanoseconds in fields that
// end in _ns, as everywhere in verdicts. Texts that may be any bytes (code, arguments, paths, output) are [Text].
package api
