package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// plainToTLS is what package http answers to a request without TLS on a port with TLS.
const plainToTLS = "Client sent an HTTP request to an HTTPS server"

// plainAnswer is the error of package http for an answer without TLS to a request with TLS. It has no type.
const plainAnswer = "server gave HTTP response to HTTPS client"

// tlsError returns the error of a server that answers and with which no secure connection can be made, or nil.
func tlsError(op string, err error) error {
	failed := func(message, remedy string) error {
		return &v1.Error{Code: v1.CodeTLS, Op: op, Message: message, Remedy: remedy, Err: err}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return failed("the server's certificate is signed by an unknown authority", "add the authority to the certificates of this machine, or name its file in SSL_CERT_FILE")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return failed("the server's certificate is for another name", "use the name in the certificate")
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return failed("the server's certificate has expired or is not valid yet", "renew it; check the clock")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return failed("the server's certificate is invalid", "")
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || strings.Contains(err.Error(), plainAnswer) {
		return failed("the server does not speak TLS", "write http:// in its address, if the network is trusted")
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" { // so package tls reports an alert
		return failed("the server refuses the TLS connection", "")
	}
	return nil
}
