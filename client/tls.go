package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// plainToTLS is the answer of package http to a request without TLS on a TLS port.
const plainToTLS = "Client sent an HTTP request to an HTTPS server"

// plainAnswer is the error text of package http for an answer without TLS to a TLS request. The error has no type.
const plainAnswer = "server gave HTTP response to HTTPS client"

// tlsError returns an error with code CodeTLS if err is a failure of TLS, else nil.
func tlsError(op string, err error) error {
	failed := func(message, remedy string) error {
		return &v1.Error{Code: v1.CodeTLS, Op: op, Message: message, Remedy: remedy, Err: err}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return failed("the server's certificate is signed by an unknown authority",
			"add the authority to the certificates of this machine, or set SSL_CERT_FILE to its file")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return failed("the server's certificate is for another name", "use the name of the certificate in the URL")
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return failed(
			"the server's certificate has expired or is not valid yet",
			"renew the certificate, or check the clock of this machine",
		)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return failed("the server's certificate is invalid", "")
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || strings.Contains(err.Error(), plainAnswer) {
		return failed("the server does not speak TLS", "use http:// in the URL of the server if the network is trusted")
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" { // an alert, as package tls reports it
		return failed("the server refuses the TLS connection", "")
	}
	return nil
}
