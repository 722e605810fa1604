package signing

import (
	"fmt"
	"maps"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Annotations that say which function or catalog a subject belongs to. They
// count where they are signed along, and nowhere else.
const (
	AnnotationGroup = "krmcat.dev/group"
	AnnotationName  = "krmcat.dev/name"
)

// Named says in a descriptor which function or catalog its subject belongs to:
// the group and the kind of a function; the name alone of a catalog, whose group
// is empty. Whoever signs such a descriptor signs that along. Whoever verifies
// it refuses signatures that were made for another name, so that what was
// signed for one function cannot be passed off as another's. Signatures that
// say nothing of names, as those of other tools, are not affected; a policy
// that requires the annotations refuses them.
func Named(desc ocispec.Descriptor, group, name string) ocispec.Descriptor {
	desc.Annotations = map[string]string{}
	for key, value := range map[string]string{AnnotationGroup: group, AnnotationName: name} {
		if value != "" {
			desc.Annotations[key] = value
		}
	}
	return desc
}

// namesOf are what a descriptor says that its subject is known as.
func namesOf(desc ocispec.Descriptor) map[string]string {
	names := map[string]string{}
	for _, key := range []string{AnnotationGroup, AnnotationName} {
		if v := desc.Annotations[key]; v != "" {
			names[key] = v
		}
	}
	return names
}

// withNames are the annotations to sign, and to look for, about a subject.
func withNames(annotations map[string]string, subject ocispec.Descriptor) map[string]string {
	names := namesOf(subject)
	if len(names) == 0 {
		return annotations
	}
	all := maps.Clone(annotations)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, names)
	return all
}

// checkNames compares the names that were signed along with those that the
// subject is known as.
func checkNames(signed map[string]string, subject ocispec.Descriptor) error {
	names := namesOf(subject)
	for _, key := range slices.Sorted(maps.Keys(names)) {
		if got, ok := signed[key]; ok && got != names[key] {
			return fmt.Errorf("signed for %s=%q, not for %q", key, got, names[key])
		}
	}
	return nil
}
