package durable

// SyncAll does nothing; see SyncDir.
func SyncAll(string) error { return nil }
