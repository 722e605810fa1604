//go:build !linux

package regdir_test

import "errors"

func shutdown(string) error { return errors.ErrUnsupported }
