package regbucket

import (
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Credentials are what requests are signed with. Give keys, a file, or
// Instance.
type Credentials struct {
	AccessKey    string
	SecretKey    string
	SessionToken string // of temporary keys; empty for others
	// File is in the format of ~/.aws/credentials, of which Profile (empty is
	// "default") is used. It is read again when temporary keys expire.
	File    string
	Profile string
	// Instance takes the keys that the machine or the pod was given (the
	// metadata service of EC2 and ECS, or a web identity token).
	Instance bool
}

// String does not show the keys.
func (c Credentials) String() string {
	switch {
	case c.AccessKey != "":
		return "keys"
	case c.File != "":
		return "file " + c.File
	case c.Instance:
		return "instance"
	}
	return "none"
}

// GoString does not show the keys.
func (c Credentials) GoString() string { return c.String() }

// LogValue does not show the keys.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

func (c Credentials) provider() (*credentials.Credentials, error) {
	switch {
	case c.AccessKey != "" && c.SecretKey != "":
		return credentials.NewStaticV4(c.AccessKey, c.SecretKey, c.SessionToken), nil
	case c.AccessKey != "" || c.SecretKey != "":
		return nil, fmt.Errorf("credentials are not complete: an access key goes with a secret key")
	case c.File != "":
		p := credentials.NewFileAWSCredentials(c.File, c.Profile)
		if _, err := p.GetWithContext(nil); err != nil {
			return nil, fmt.Errorf("reading credentials from %s: %w", c.File, err)
		}
		return p, nil
	case c.Instance:
		return credentials.NewIAM(""), nil
	}
	return nil, fmt.Errorf("no credentials (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE)")
}

// ParseLocation reads where a bucket is, from
//
//	s3://BUCKET/PREFIX?endpoint=URL&region=NAME
//
// with the further parameters path-style, create (both true or false), ca (a
// file of certificates) and credentials=instance. Everything after the bucket may be left
// out. Keys are not part of it, because it ends up in logs and lists of
// processes.
func ParseLocation(location string) (Options, error) {
	var o Options
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "s3" || u.Host == "" || u.Opaque != "" || u.Fragment != "" {
		return o, fmt.Errorf("storage is not s3://BUCKET/PREFIX?endpoint=URL&region=NAME")
	}
	if u.User != nil {
		return o, fmt.Errorf("storage %s: credentials do not belong there (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE)", u.Redacted())
	}
	o.Bucket = u.Host
	o.Prefix = strings.Trim(u.Path, "/")
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return o, fmt.Errorf("storage %s: %w", location, err)
	}
	for name, values := range q {
		v := values[len(values)-1]
		var err error
		switch name {
		case "endpoint":
			o.Endpoint = v
			_, err = parseEndpoint(v)
		case "region":
			o.Region = v
		case "ca":
			o.CAFile = v
		case "path-style":
			o.PathStyle, err = strconv.ParseBool(v)
		case "create":
			o.CreateBucket, err = strconv.ParseBool(v)
		case "credentials":
			if o.Credentials.Instance = v == "instance"; !o.Credentials.Instance {
				err = fmt.Errorf("only credentials=instance can be said there")
			}
		default:
			err = fmt.Errorf("unknown parameter (those are endpoint, region, path-style, ca, create and credentials)")
		}
		if err != nil {
			return Options{}, fmt.Errorf("storage s3://%s: parameter %s: %w", o.Bucket, name, err)
		}
		if len(values) > 1 {
			return Options{}, fmt.Errorf("storage s3://%s: parameter %s is there twice", o.Bucket, name)
		}
	}
	return o, nil
}

func parseEndpoint(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err == nil && u.User != nil {
		return nil, fmt.Errorf("credentials do not belong there")
	}
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%.200q is not https://HOST or https://HOST:PORT", s)
	}
	return u, nil
}
