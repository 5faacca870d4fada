package drbdtools

import "fmt"

// What we claim to be: drbd-utils and a driver that have all the forms that agent/compat prints. Consumers have least
// versions for both.
const (
	utilsVersion  = "9.34.0"
	utilsCode     = "0x092200"
	kernelVersion = "9.2.0"
	kernelCode    = "0x090200"
)

// versionText is drbdadm --version: shells evaluate it.
func (t *tool) versionText() string {
	text := fmt.Sprintf("DRBDADM_BUILDTAG=hawser\\ %s\n", quoteShell(t.Version))
	if t.v84 {
		return text + "DRBDADM_API_VERSION=1\nDRBD_KERNEL_VERSION_CODE=0x08040b\nDRBDADM_VERSION_CODE=" + utilsCode + "\nDRBDADM_VERSION=" + utilsVersion + "\n"
	}
	return text + "DRBDADM_API_VERSION=2\nDRBD_KERNEL_VERSION_CODE=" + kernelCode + "\nDRBD_KERNEL_VERSION=" + kernelVersion +
		"\nDRBDADM_VERSION_CODE=" + utilsCode + "\nDRBDADM_VERSION=" + utilsVersion + "\n"
}
