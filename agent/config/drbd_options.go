package config

// instead says what hawser does about an option of drbd.conf that it does not have.
type instead struct {
	same []string // values that ask for what hawser does anyway
	text string
}

// insteadOf is every option of drbd.conf that table lacks, by section and name, and those that table has for
// coordination: etcd only, which no drbd.conf asks for. What is here is asked before table.
var insteadOf = map[string]instead{
	"global usage-count":             {[]string{"no"}, "hawser counts no installations and calls nobody"},
	"global dialog-refresh":          {[]string{"0", "1"}, "nothing waits with a dialog at boot"},
	"global minor-count":             {nil, "there is no kernel module that would reserve minor numbers"},
	"global disable-ip-verification": {nil, "addresses are looked at when they are used: a missing one is a connection that does not come up"},
	"global cmd-timeout-short":       {nil, "each command has its own deadline, see hawser --help"},
	"global cmd-timeout-medium":      {nil, "each command has its own deadline, see hawser --help"},
	"global cmd-timeout-long":        {nil, "each command has its own deadline, see hawser --help"},
	"global udev-always-use-vnr":     {nil, "the name /dev/hawser/RES/VOL always has the number"},

	"net transport":             {[]string{"tcp"}, "connections are TCP"},
	"net load-balance-paths":    {[]string{"no"}, "a connection uses its first path"},
	"net unplug-watermark":      {nil, "requests go to the disk as they come, without plugging"},
	"net tcp-cork":              {nil, "TCP_CORK is not used: what is ready goes out together, at once"},
	"net allow-remote-read":     {[]string{"yes"}, "a diskless Primary always reads from its peers"},
	"net tls":                   {[]string{"no"}, "replication links are not encrypted: use a private network, WireGuard or IPsec"},
	"net tls-keyring":           {nil, "replication links are not encrypted: use a private network, WireGuard or IPsec"},
	"net tls-privkey":           {nil, "replication links are not encrypted: use a private network, WireGuard or IPsec"},
	"net tls-certificate":       {nil, "replication links are not encrypted: use a private network, WireGuard or IPsec"},
	"net rdma-ctrl-rcvbuf-size": {nil, "connections are TCP, see rcvbuf-size"},
	"net rdma-ctrl-sndbuf-size": {nil, "connections are TCP, see sndbuf-size"},
	"net discard-my-data":       {[]string{"no"}, "data is given up for one connect only: hawser connect --discard-my-data"},
	"net tentative":             {[]string{"no"}, "hawser has no trial connect"},

	"disk disk-barrier":              {[]string{"no"}, "writes are ordered by flushes, see disk-flushes"},
	"disk disk-drain":                {[]string{"yes"}, "all writes before a barrier are on the disk before it is confirmed, always"},
	"disk resync-after":              {nil, "resyncs of several resources run at the same time; c-max-rate bounds each, c-min-rate leaves room for the application"},
	"disk discard-zeroes-if-aligned": {[]string{"yes"}, "discards go to the disk as they are, and it does with unaligned ends what it does"},
	"disk disable-write-same":        {[]string{"yes"}, "there is no write-same"},
	"disk max-bio-size":              {nil, "requests are as large as front end and peer allow"},
	"disk block-size":                {nil, "the block size is that of the disk"},
	"disk discard-granularity":       {nil, "the granularity of discards is that of the disk"},
	"disk max-bio-bvecs":             {nil, "there are no bios in user space"},
	"disk use-bmbv":                  {[]string{"no"}, "there are no bios in user space"},
	"disk bitmap":                    {[]string{"yes"}, "every node with a disk has a bitmap, a diskless one has none"},
	"disk resync-without-replication": {[]string{"yes"},
		"two Secondaries resync as any two nodes do"},
	"disk peer-tiebreaker": {nil, "replicas do not vote: who may write is decided through etcd, or by Pacemaker"},
	"disk tiebreaker":      {nil, "replicas do not vote: who may write is decided through etcd, or by Pacemaker"},

	"options cpu-mask":                      {nil, "use CPUAffinity= in the systemd unit of the agent"},
	"options auto-promote":                  {[]string{"no"}, "opening a device promotes nobody: hawser primary does, or Pacemaker, or the agent with coordination: etcd"},
	"options auto-promote-timeout":          {nil, "opening a device promotes nobody: hawser primary does, or Pacemaker, or the agent with coordination: etcd"},
	"options quorum":                        {[]string{"off"}, "replicas do not vote: who may write is decided through etcd, or by Pacemaker with fencing"},
	"options on-no-quorum":                  {nil, "replicas do not vote: a Primary without the right to write freezes, and fails its writes once it is deposed"},
	"options quorum-minimum-redundancy":     {[]string{"off"}, "replicas do not vote: who may write is decided through etcd, or by Pacemaker with fencing"},
	"options on-suspended-primary-outdated": {[]string{"force-secondary"}, "a deposed Primary fails its frozen writes and becomes Secondary, always"},
	"options peer-ack-window":               {nil, "hawser keeps no such window: what a peer has missed is in the bitmap for it"},
	"options peer-ack-delay":                {nil, "hawser keeps no such window: what a peer has missed is in the bitmap for it"},
	"options twopc-timeout":                 {nil, "replicas make no cluster-wide state changes"},
	"options twopc-retry-timeout":           {nil, "replicas make no cluster-wide state changes"},
	"options max-io-depth":                  {nil, "the memory of max-buffers and max-epoch-size bounds what is under way"},
	"options drbd8-api-compatibility":       {nil, "drbdadm and drbdsetup have an 8.4 form of their own: drbdadm-84, drbdsetup-84"},

	"startup wfc-timeout":          {nil, "nothing waits for peers at boot: hawser up returns, and hawser wait-connect waits where a script wants that"},
	"startup degr-wfc-timeout":     {nil, "nothing waits for peers at boot: hawser up returns, and hawser wait-connect waits where a script wants that"},
	"startup outdated-wfc-timeout": {nil, "nothing waits for peers at boot: hawser up returns, and hawser wait-connect waits where a script wants that"},
	"startup wait-after-sb":        {[]string{"no"}, "nothing waits for peers at boot: a split brain is in hawser status, and the handler split-brain runs"},
	"startup stacked-timeouts":     {nil, "nothing waits for peers at boot, and there are no stacked resources"},
	"startup become-primary-on":    {nil, "nobody is promoted at boot: the cluster decides, or hawser primary"},

	"handlers before-resync-source": {nil, "only the target of a resync runs handlers; before-resync-target is that"},
	"handlers pri-on-incon-degr":    {nil, "a Primary that reaches no good copy does as on-no-data-accessible says"},
	"handlers out-of-sync":          {nil, "what a verify finds is in hawser events, in the status and in the metrics"},
	"handlers quorum-lost":          {nil, "replicas do not vote, so no vote is lost"},
	"handlers disconnected":         {nil, "hawser events tells of lost peers"},

	"proxy memlimit":     {nil, "there is no proxy"},
	"proxy read-loops":   {nil, "there is no proxy"},
	"proxy compression":  {nil, "there is no proxy"},
	"proxy bwlimit":      {nil, "there is no proxy"},
	"proxy sndbuf-size":  {nil, "there is no proxy"},
	"proxy rcvbuf-size":  {nil, "there is no proxy"},
	"proxy ping-timeout": {nil, "there is no proxy"},
	"proxy plugin":       {nil, "there is no proxy"},
}

// otherValue is what to take for a value that hawser does not have; use "" leaves the option out.
var otherValue = map[string]map[string]struct{ use, why string }{
	"rr-conflict": {
		"retry-connect": {"disconnect", "the connection stands alone until hawser connect"},
		"auto-discard":  {"disconnect", "the connection stands alone until hawser connect; hawser connect --discard-my-data gives up what is here"},
	},
	"after-sb-0pri": {
		"discard-local":  {"disconnect", "both nodes read the same file, and each would give up its own: use discard-node-NAME"},
		"discard-remote": {"disconnect", "both nodes read the same file, and each would take its own: use discard-node-NAME"},
	},
	"read-balancing": {
		"when-congested-remote": {"least-pending", "whether a disk is congested is known to its kernel only"},
	},
}

// withoutAlg is what it means that hawser lacks an algorithm. cram-hmac-alg is not here: without it nobody is
// authenticated, and that is for an administrator to decide.
var withoutAlg = map[string]string{
	"csums-alg":          "a resync copies all that is marked, without comparing",
	"verify-alg":         "hawser verify needs one of these",
	"data-integrity-alg": "blocks are sent without digest, as far as TCP protects them",
}
