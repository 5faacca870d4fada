package drbdtools

import (
	"fmt"
	"strings"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// size reads a size on a command line: plain numbers are KiB, s stands for sectors. The result is bytes.
func size(text string) (int64, error) {
	n, why := drbdconf.ParseNumber(text, drbdconf.KiB)
	if strings.HasSuffix(text, "s") {
		n, why = drbdconf.ParseNumber(text, drbdconf.Sector)
		if why == "" && n <= 1<<53 {
			return int64(n) * 512, nil
		}
	}
	if why != "" {
		return 0, fmt.Errorf("%s", why)
	}
	if n > 1<<52 {
		return 0, fmt.Errorf("too large")
	}
	return int64(n) * 1024, nil
}
