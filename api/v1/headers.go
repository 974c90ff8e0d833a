package v1

// Headers, trailers and media types.
const (
	HeaderTenant      = "Recluse-Tenant"  // the tenant an operator acts for
	HeaderRequest     = "Recluse-Request" // the request's id
	HeaderIdempotency = "Idempotency-Key"
	HeaderLastEvent   = "Last-Event-ID"

	// Trailers follow a body; their content is known only at its end.
	TrailerFile = "Recluse-File" // FileInfo
	TrailerTar  = "Recluse-Tar"  // TarStats, with only the first entries of its lists

	EventStream = "text/event-stream"
)
