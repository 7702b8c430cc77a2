package mcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

const (
	// maxDetail is the maximum length of a text that is quoted from a server, and maxMessage the maximum length of a
	// tool's error text, in code points. Servers and gateways may write several hundred code points before they say
	// what to do.
	maxDetail  = 900
	maxMessage = 2000

	// setURL tells the user how to handle a redirect.
	setURL = "set mcp.url to the final one"
)

// Kind classifies why a server cannot be used.
type Kind string

const (
	// Refused means that the server rejects the credentials.
	Refused Kind = "Refused"
	// Unreachable means that there is no connection, that the server failed, or that it did not send its whole list of
	// tools in time.
	Unreachable Kind = "Unreachable"
	// Protocol means that the endpoint is not an MCP server, or not one that Capstan can use. An example is a server
	// whose list of tools exceeds a limit.
	Protocol Kind = "Protocol"
	// NoMemory means that there is not enough memory for the server's list of tools.
	NoMemory Kind = "NoMemory"
)

// Error says why a server cannot be used, on one line of limited length, without credentials.
type Error struct {
	Kind Kind
	// Message is the text of Capstan. A status contains only this part.
	Message string
	// RemoteMessage is the text of the server or the network; it may be empty. It is for journals, and for people who
	// run the command line themselves.
	RemoteMessage string
	// Err is the cause. It may contain credentials, so it must not appear in messages.
	Err error
}

// Error returns Message, followed by RemoteMessage.
func (e *Error) Error() string {
	if e.RemoteMessage == "" {
		return e.Message
	}
	return e.Message + ": " + e.RemoteMessage
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// discoveryError returns the Error for a server that cannot be used.
func (c *Client) discoveryError(ctx context.Context, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	as := func(kind Kind, message, remote string) *Error {
		return &Error{Kind: kind, Message: message, RemoteMessage: c.redactor.Line(remote, maxDetail), Err: err}
	}
	if status, ok := errors.AsType[*statusError](err); ok {
		return as(status.kind(), c.statusMessage(status), status.detail)
	}
	if refused, ok := errors.AsType[*netpolicy.Refused](err); ok {
		return as(Unreachable, refused.Error(), "")
	}
	if short, ok := errors.AsType[*netpolicy.Shortage](err); ok {
		return &Error{Kind: Unreachable, Message: short.Error(), Err: fmt.Errorf("%w: %w", tool.ErrOwnShortage, err)}
	}
	if encoded, ok := errors.AsType[*netpolicy.EncodedError](err); ok {
		return as(Protocol, encoded.Error(), "")
	}
	switch {
	case errors.Is(err, errNoMemory):
		return as(NoMemory, err.Error(), "")
	case errors.Is(err, errLimit):
		return as(Protocol, c.redactor.Line(err.Error(), maxDetail), "")
	case errors.Is(err, netpolicy.ErrRedirect):
		return as(Protocol, "the server redirects to another address: "+setURL, "")
	case errors.Is(err, errSlow):
		return as(Unreachable, errSlow.Error(), "")
	case errors.Is(err, errPage):
		return as(Protocol, fmt.Sprintf("the endpoint at mcp.url is not an MCP server over streamable HTTP (%s): check its path, "+
			"and whether a proxy in front of it requires a login", errPage), "")
	case errors.Is(err, errTooLong), errors.Is(err, errProtocol):
		return as(Protocol, fmt.Sprintf("the endpoint at mcp.url is not an MCP server over streamable HTTP (%s): check its path",
			rootOf(err)), "")
	case isUntrusted(err):
		return as(Unreachable, "the server's certificate is not trusted: "+netpolicy.Cause(err), rootCause(err))
	case errors.Is(err, ErrClosed):
		return as(Unreachable, "the connection was ended", "")
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return as(Unreachable, fmt.Sprintf("no answer within %s", c.cfg.ConnectTimeout), "")
	}
	if remote, ok := errors.AsType[*jsonrpc.Error](err); ok && !isTransport(err) {
		return as(Protocol, fmt.Sprintf("the server answers with an error (%d)", remote.Code), remote.Message)
	}
	if cause := netpolicy.Cause(err); cause != "" {
		return as(Unreachable, "the connection to the server failed: "+c.redactor.Line(cause, maxDetail), "")
	}
	return as(Unreachable, "the connection to the server failed", rootCause(err))
}

// IsRefused reports whether a server cannot be used because it rejects the credentials.
func IsRefused(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind == Refused
	}
	e, ok := errors.AsType[*statusError](err)
	return ok && e.kind() == Refused
}

func kindOf(status int) Kind {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Refused
	case status == http.StatusTooManyRequests, status >= http.StatusInternalServerError:
		return Unreachable
	}
	return Protocol
}

func (c *Client) statusMessage(e *statusError) string {
	if e.refusesHost() {
		return fmt.Sprintf("the server does not accept the host name of mcp.url (HTTP %d): allow it in the server's check of the "+
			"header Host", e.status)
	}
	switch kindOf(e.status) {
	case Refused:
		check := "whether the server needs a token: the ToolServer has no credentialsRef"
		if c.cfg.CredentialsFrom != "" {
			check = c.cfg.CredentialsFrom
		}
		return fmt.Sprintf("the server refused the credentials (HTTP %d): check %s", e.status, check)
	case Unreachable:
		return fmt.Sprintf("the server failed (HTTP %d)", e.status)
	case Protocol, NoMemory:
	}
	if e.status < http.StatusMultipleChoices {
		return fmt.Sprintf("the server accepted the request without a response to it (HTTP %d): check the path of mcp.url", e.status)
	}
	return fmt.Sprintf("the server refused the request (HTTP %d): check the path of mcp.url", e.status)
}

// callError returns the error for a call without a usable response.
func (c *Client) callError(ctx context.Context, ex *exchange, err error) *tool.Error {
	as := func(class tool.Class, format string, args ...any) *tool.Error {
		return &tool.Error{Class: class, Message: c.prefix() + fmt.Sprintf(format, args...), Err: err}
	}
	status, refused := errors.AsType[*statusError](err)
	withStatus := func(class tool.Class) *tool.Error {
		return &tool.Error{
			Class: class, Message: c.prefix() + c.statusMessage(status),
			RemoteMessage: c.redactor.Line(status.detail, maxDetail), Err: err,
		}
	}
	encoded, isEncoded := errors.AsType[*netpolicy.EncodedError](err)
	notMade := !ex.sent.Load() || errors.Is(err, netpolicy.ErrUnprocessed)
	switch {
	case ctx.Err() != nil && notMade:
		return as(tool.Unavailable, "it could not be reached in time, and the call was not made")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return as(tool.Timeout, "it gave no result in time")
	case ctx.Err() != nil:
		return as(tool.OutcomeUnknown, "the call was cancelled before it returned")
	case refused && status.kind() == Refused:
		return withStatus(tool.Denied)
	case errors.Is(err, errMoved):
		return as(tool.OutcomeUnknown, "%s: %s", errMoved, setURL)
	case errors.Is(err, netpolicy.ErrRedirect):
		return as(tool.Unavailable, "%s, and the call was not made: %s", netpolicy.ErrRedirect, setURL)
	case errors.Is(err, errSession):
		return as(tool.Unavailable, "%s, and the call was not made", errSession)
	case notMade:
		failure := c.discoveryError(ctx, err)
		return &tool.Error{
			Class: tool.Unavailable, Message: c.prefix() + failure.Message, RemoteMessage: failure.RemoteMessage, Err: failure,
		}
	case refused && mayHaveActed(status.status):
		return withStatus(tool.OutcomeUnknown)
	case refused && status.status == http.StatusBadRequest:
		return withStatus(tool.Failed)
	case refused:
		return withStatus(tool.Unavailable)
	case isEncoded:
		return as(tool.OutcomeUnknown, "%s", encoded)
	case errors.Is(err, errTooLong), errors.Is(err, errSlow), errors.Is(err, errProtocol), errors.Is(err, errElements),
		errors.Is(err, bytebudget.ErrNoSpace):
		return as(tool.OutcomeUnknown, "%s", rootOf(err))
	}
	return as(tool.OutcomeUnknown, "%s", errBroken)
}

// unknownOutcome returns the error for a call to which the server has replied that the session is over.
func (c *Client) unknownOutcome(err error) *tool.Error {
	failure := &tool.Error{Class: tool.OutcomeUnknown, Message: c.prefix() + errSession.Error() + ", and may have made the call", Err: err}
	if over, ok := errors.AsType[*sessionError](err); ok {
		failure.RemoteMessage = c.redactor.Line(over.detail, maxDetail)
	}
	return failure
}

func (c *Client) prefix() string { return fmt.Sprintf("tool server %q: ", c.cfg.Name) }

// rootOf returns the error of this package that err wraps, or err if there is none.
func rootOf(err error) error {
	for _, known := range []error{
		errTooLong, errSlow, errEmpty, errPage, errProtocol, errElements, bytebudget.ErrNoSpace, errSession,
		netpolicy.ErrRedirect, errBroken,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

// protocolError returns the error for a call to which the server has replied with a protocol error. Without the ID of
// the call, a gateway may have sent the error on its own, so only some codes say that the call was not made.
func (c *Client) protocolError(name string, remote *jsonrpc.Error, withoutID bool) *tool.Error {
	failure := &tool.Error{
		Class: classOf(name, remote.Code, remote.Message), Message: c.prefix() + "it returned an error for the call",
		RemoteMessage: c.redactor.Text(remote.Message, maxMessage), Err: remote,
	}
	if withoutID && failure.Class == tool.Failed && remote.Code != jsonrpc.CodeParseError && remote.Code != jsonrpc.CodeInvalidRequest {
		failure.Class = tool.OutcomeUnknown
		failure.Message = c.prefix() + "it returned an error without the ID of the call, and may have made the call"
	}
	return failure
}

const (
	// codeClosed and codeTimeout are the codes of errors that clients based on the reference SDK make on their own. A
	// gateway passes such an error of its own client on. Servers use the same codes for other errors.
	codeClosed  = -32000
	codeTimeout = -32001
	// codeRequestTimeout is the code of a time-out of clients that are based on the Python SDK. It is a status of HTTP.
	codeRequestTimeout = http.StatusRequestTimeout
)

// classOf returns the class of a protocol error with this code and message, which is the answer to a call of a tool.
func classOf(name string, code int64, message string) tool.Class {
	text := strings.ToLower(message)
	switch {
	case code == jsonrpc.CodeMethodNotFound, code == jsonrpc.CodeInvalidParams && isUnknown(name, message):
		return tool.Unavailable
	case code == jsonrpc.CodeInvalidParams:
		return tool.InvalidArguments
	case code == codeTimeout && (strings.Contains(text, "timed out") || strings.Contains(text, "timeout exceeded")),
		code == codeRequestTimeout && strings.Contains(text, "timed out"):
		return tool.Timeout
	case code == codeClosed && strings.Contains(text, "connection closed"):
		return tool.OutcomeUnknown
	}
	return tool.Failed
}

// isUnknown reports whether a message says that the server has no tool of this name. The protocol has no error code for
// that.
func isUnknown(name, message string) bool {
	text := strings.ToLower(message)
	return strings.Contains(text, "unknown tool") ||
		strings.Contains(text, strings.ToLower(name)) && (strings.Contains(text, "not found") || strings.Contains(text, "does not exist"))
}

// coded matches a tool result that reports a protocol error. Servers that use the reference SDK send such results.
var coded = regexp.MustCompile(`^MCP error (-32\d{3}|408): `)

// reportedError returns the error for a tool result that is marked as an error.
func (c *Client) reportedError(name, text string) *tool.Error {
	class := tool.Failed
	if m := coded.FindStringSubmatch(text); m != nil {
		code, _ := strconv.ParseInt(m[1], 10, 64) // it cannot fail, because it has at most five digits
		class = classOf(name, code, text)
	}
	if text = c.redactor.Text(text, maxMessage); strings.TrimSpace(text) == "" {
		return &tool.Error{Class: class, Message: "the tool failed without a reason"}
	}
	return &tool.Error{Class: class, Message: "the tool failed", RemoteMessage: text}
}

// isUntrusted reports whether a connection failed because of the server's certificate.
func isUntrusted(err error) bool {
	_, verification := errors.AsType[*tls.CertificateVerificationError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	return verification || authority
}

// isTransport reports whether an error occurred in the transport, not in the server. The SDK returns such errors in the
// type of protocol errors.
func isTransport(err error) bool {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	return ok && e.Code == codeRejected
}

// codeRejected is the code that the SDK gives to transport errors.
const codeRejected = -32005

// rootCause returns the message of the innermost error. The outer errors only repeat the URL.
func rootCause(err error) string {
	for {
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			if all := many.Unwrap(); len(all) > 0 {
				err = all[len(all)-1]
				continue
			}
		}
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
