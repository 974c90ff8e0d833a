package v1

// Headers, trailers and media types.
const (
	HeaderTenant      = "Recluse-Tenant"  // the tenant an operator acts for
	HeaderRequest     = "Recluse-Request" // the request's id
	HeaderIdempotency = "Idempotency-Key"
	HeaderLastEvent   = "Last-Event-ID"

	// Trailers follow a body whose end is known only then.
	TrailerFile = "Recluse-File" // FileInfo
	TrailerTar  = "Recluse-Tar"  // TarStats, of whose lists only the beginning is given

	EventStream = "text/event-stream"
)
