package main

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// startMirror makes the disk of a storage daemon a write-blocking mirror and waits until it is one. The connection
// stays open: the job belongs to the daemon.
func startMirror(path string) error {
	c, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	_, err = c.Write([]byte(`{"execute": "qmp_capabilities"} {"execute": "blockdev-mirror", "arguments": {"job-id": "m",
		"device": "disk", "target": "remote", "sync": "full", "copy-mode": "write-blocking"}}`))
	if err != nil {
		return err
	}
	for dec := json.NewDecoder(c); ; {
		var m struct {
			Event string
			Error *struct{ Desc string }
		}
		if err := dec.Decode(&m); err != nil {
			return fmt.Errorf("the mirror did not become ready: %w", err)
		}
		if m.Error != nil {
			return fmt.Errorf("blockdev-mirror: %s", m.Error.Desc)
		}
		if m.Event == "BLOCK_JOB_READY" {
			return nil
		}
	}
}
