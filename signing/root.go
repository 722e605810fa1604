package signing

import (
	"errors"
	"fmt"

	"github.com/sigstore/sigstore-go/pkg/root"
)

// maxRootBytes is the size limit of a trusted root.
const maxRootBytes = 4 << 20

// TrustedRoot says which certificate authorities, transparency logs,
// certificate logs and timestamp authorities are genuine, and when. It never
// says who may sign what.
type TrustedRoot struct{ material root.TrustedMaterial }

// LoadTrustedRoot reads a Sigstore trusted_root.json. Nothing is fetched.
func LoadTrustedRoot(data []byte) (*TrustedRoot, error) {
	if len(data) > maxRootBytes {
		return nil, fmt.Errorf("trusted root: more than %d bytes", maxRootBytes)
	}
	r, err := root.NewTrustedRootFromJSON(data)
	if err != nil {
		return nil, fmt.Errorf("reading the trusted root: %w", err)
	}
	return &TrustedRoot{r}, nil
}

// NewTrustedRoot makes a trusted root of Sigstore's own type.
func NewTrustedRoot(material root.TrustedMaterial) *TrustedRoot { return &TrustedRoot{material} }

// errNoRoot: there is nothing to check certificates, logs and timestamps with.
var errNoRoot = errors.New("no trusted root (give a trusted_root.json)")
