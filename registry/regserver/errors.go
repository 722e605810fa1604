package regserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regstore"
)

// Error is an answer that reports a failure (distribution-spec, "Error
// Codes").
type Error struct {
	Status  int    // HTTP status
	Code    string // upper case letters and underscores
	Message string
	Detail  any // nil is none

	header http.Header
	cause  error // for the log only
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Unwrap returns the cause, which the client is not told.
func (e *Error) Unwrap() error { return e.cause }

var (
	errNotFound = &Error{Status: http.StatusNotFound, Code: "UNSUPPORTED", Message: "there is nothing at this path (the registry API is /v2/NAME/{manifests,blobs,tags,referrers}/…)"}
	errName     = &Error{Status: http.StatusBadRequest, Code: "NAME_INVALID", Message: "invalid repository name (lower case letters and digits, with '.', '_', '-' between them and '/' between components; at most 255)"}
	errTag      = &Error{Status: http.StatusBadRequest, Code: "MANIFEST_INVALID", Message: "that is neither a tag (letters, digits, '_', '.' and '-', at most 128) nor a digest"}
	errReadOnly = &Error{Status: http.StatusMethodNotAllowed, Code: "UNSUPPORTED", Message: "this registry is read-only", header: http.Header{"Allow": {"GET, HEAD"}}}
)

func errMethod(allowed map[string]handler) error {
	return &Error{Status: http.StatusMethodNotAllowed, Code: "UNSUPPORTED", Message: "this method cannot be used here",
		header: http.Header{"Allow": {strings.Join(slices.Sorted(maps.Keys(allowed)), ", ")}}}
}

func errDigest(s string, err error) error {
	if len(s) > 200 {
		s = s[:200]
	}
	return &Error{Status: http.StatusBadRequest, Code: "DIGEST_INVALID", Message: err.Error(), Detail: map[string]string{"digest": s}}
}

func errRefused(r *registry.RefusedError) error {
	e := &Error{Status: http.StatusForbidden, Code: r.Code, Message: r.Message, Detail: r.Detail}
	switch r.Code {
	case "":
		e.Code = "DENIED"
	case "DENIED":
	default:
		e.Status = http.StatusBadRequest
	}
	return e
}

// unavailable is the answer when something behind the server does not work
// just now.
func unavailable(cause error) error {
	return &Error{Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE", Message: "the registry cannot do this just now; try again",
		header: http.Header{"Retry-After": {"5"}}, cause: cause}
}

// tooMany asks a client to come back.
func tooMany(message string) error {
	return &Error{Status: http.StatusTooManyRequests, Code: "TOOMANYREQUESTS", Message: message, header: http.Header{"Retry-After": {"5"}}}
}

// storeError translates an error of the driver. missing is the code for
// content that is not there.
func storeError(err error, missing string) error {
	var own *Error
	var offset *regstore.OffsetError
	var tag *regstore.TagError
	var absent *regstore.MissingError
	var refused *registry.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &offset):
		return &Error{Status: http.StatusRequestedRangeNotSatisfiable, Code: "BLOB_UPLOAD_INVALID", Message: offset.Error()}
	case errors.As(err, &tag):
		return errImmutable(tag.Tag, tag.Digest)
	case errors.As(err, &absent):
		return errMissing(absent.Digests)
	case errors.As(err, &refused):
		return errRefused(refused)
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Status: http.StatusNotFound, Code: missing, Message: unknown[missing]}
	case errors.Is(err, regstore.ErrUploadUnknown):
		return &Error{Status: http.StatusNotFound, Code: "BLOB_UPLOAD_UNKNOWN", Message: "no such upload: it is finished, cancelled or too old; start again"}
	case errors.Is(err, regstore.ErrDigest):
		return &Error{Status: http.StatusBadRequest, Code: "DIGEST_INVALID", Message: "provided digest did not match uploaded content"}
	case errors.Is(err, regstore.ErrInUse):
		return &Error{Status: http.StatusMethodNotAllowed, Code: "UNSUPPORTED", Message: "a manifest of this repository refers to this blob; delete the manifest first", header: http.Header{"Allow": {"GET, HEAD"}}}
	case errors.Is(err, regstore.ErrReadOnly):
		return errReadOnly
	case errors.Is(err, errors.ErrUnsupported):
		return &Error{Status: http.StatusMethodNotAllowed, Code: "UNSUPPORTED", Message: "what is behind this registry cannot do that", header: http.Header{"Allow": {"GET, HEAD, PUT"}}, cause: err}
	case errors.Is(err, regstore.ErrTooManyUploads):
		return tooMany("too many unfinished uploads; finish some, or try again")
	case errors.Is(err, regstore.ErrNoSpace):
		return &Error{Status: http.StatusInsufficientStorage, Code: "STORAGE_FULL", Message: "the registry's storage is full; nothing was stored", cause: err}
	case errors.Is(err, regstore.ErrUnavailable):
		return unavailable(err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Error{Status: http.StatusRequestTimeout, Code: "TOOMANYREQUESTS", Message: "the request's body came too slowly"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &Error{Status: http.StatusBadRequest, Code: "SIZE_INVALID", Message: "the request's body ended early"}
	}
	return err
}

// unknown is what is said about content that is not there.
var unknown = map[string]string{
	"BLOB_UNKNOWN":     "blob unknown to registry",
	"MANIFEST_UNKNOWN": "manifest unknown to registry",
	"NAME_UNKNOWN":     "repository name not known to registry",
}

// errKept is the answer to a deletion that is disabled, which the
// specification wants to be 400 or 405 ("Content Management").
func errKept(message string, detail any) error {
	return &Error{Status: http.StatusMethodNotAllowed, Code: "UNSUPPORTED", Message: message, Detail: detail, header: http.Header{"Allow": {"GET, HEAD"}}}
}

func errImmutable(tag string, have digest.Digest) error {
	return &Error{Status: http.StatusForbidden, Code: "DENIED",
		Message: "release " + tag + " is published already, as " + string(have) + ", and cannot be replaced; publish the change as a new release",
		Detail:  map[string]string{"tag": tag, "digest": string(have)}}
}

func errMissing(digests []digest.Digest) error {
	message := "manifest references a manifest or blob unknown to registry"
	if len(digests) > 0 {
		message += ": " + string(digests[0])
	}
	return &Error{Status: http.StatusNotFound, Code: "MANIFEST_BLOB_UNKNOWN", Message: message, Detail: map[string]any{"digests": digests}}
}

// maxMessage bounds what is said about an error, in bytes.
const maxMessage = 1000

// fail answers with an error.
func (c *call) fail(err error) {
	var e *Error
	if !errors.As(err, &e) {
		if errors.Is(err, context.Canceled) || c.ctx.Err() != nil {
			// The client is gone; there is nobody to tell.
			e = &Error{Status: 499, Code: "UNAVAILABLE", Message: "the client went away"}
		} else {
			e = &Error{Status: http.StatusInternalServerError, Code: "UNKNOWN", Message: "the registry could not do this; its log says why", cause: err}
		}
	}
	if e.cause != nil {
		level := slog.LevelError
		if e.Status < http.StatusInternalServerError {
			level = slog.LevelInfo // what the client asked for cannot be done
		}
		c.log.Log(c.ctx, level, "request failed", "method", c.r.Method, "repository", c.repository, "reference", c.reference, "status", e.Status, "error", e.cause)
	}
	// What the client sent may be part of the message, and long.
	message := e.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	body, err := json.Marshal(map[string]any{"errors": []any{struct {
		Code    string `json:"code"`
		Message string `json:"message,omitempty"`
		Detail  any    `json:"detail,omitempty"`
	}{e.Code, message, e.Detail}}})
	if err != nil {
		c.log.ErrorContext(c.ctx, "detail of an error cannot be written as JSON", "error", err)
		body = []byte(`{"errors":[{"code":"` + e.Code + `"}]}`)
	}
	h := c.w.Header()
	maps.Copy(h, e.header)
	h.Set("Content-Type", "application/json")
	c.w.WriteHeader(e.Status)
	if c.r.Method != http.MethodHead {
		_, _ = c.w.Write(body) // nobody to tell
	}
}
