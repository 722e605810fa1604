package cli

import (
	"fmt"
	"strconv"
	"time"
)

// sourceDate is the time that SOURCE_DATE_EPOCH gives to what is made, for
// reproducible results; zero if it is not set.
func sourceDate(getenv func(string) string) (time.Time, error) {
	s := getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: not a number of seconds since 1970", s)
	}
	return time.Unix(n, 0).UTC(), nil
}
