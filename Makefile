# hawser: `make demo` shows it, `make test` proves it, `make help` lists the rest.

PREFIX  ?= /usr/local
DESTDIR ?=
# Where Pacemaker looks for resource agents.
OCF_ROOT ?= /usr/lib/ocf
GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
LINT    := bin/golangci-lint
LINT_VERSION := v2.15.0

# Everything that demo, tests and benchmarks call beside Go. The only list.
DEBS := e2fsprogs xfsprogs drbd-utils fio nbdkit libnbd-bin python3-libnbd qemu-utils bonnie++ jq shellcheck \
        iproute2 nftables prometheus util-linux zstd qemu-system-x86 busybox-static kmod cpio xz-utils \
        pacemaker corosync pcs crmsh pacemaker-cli-utils resource-agents fence-agents openipmi ipmitool libxml2-utils procps \
        curl prometheus-hacluster-exporter iptables psmisc systemd dbus-daemon dbus-user-session nfs-kernel-server postgresql
# What bench measures beside them.
BENCH_DEBS := glusterfs-server glusterfs-client qemu-system-common

FUZZTIME ?= 10s
# Two cores are what a small machine has; a package with real processes wants room.
TESTFLAGS ?= -p 2 -timeout 20m

.PHONY: help build install demo test test-vm test-pacemaker check bench deps fmt fuzz lint shell clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

build: ## bin/hawser, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/hawser ./cmd/hawser

install: build ## program, units, resource agents, completion, sample configuration
	install -D -m 755 bin/hawser $(DESTDIR)$(PREFIX)/sbin/hawser
	install -d $(DESTDIR)/etc/hawser/resources.d
	test -e $(DESTDIR)/etc/hawser/hawser.yaml || install -m 644 etc/hawser.yaml $(DESTDIR)/etc/hawser/hawser.yaml
	install -D -m 644 etc/r0.yaml $(DESTDIR)$(PREFIX)/share/doc/hawser/r0.yaml
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/hawser/services etc/services/*.yaml
	for u in hawser-agent.service hawser-resources.service; do \
		sed 's|/usr/local/sbin|$(PREFIX)/sbin|' etc/systemd/$$u >bin/$$u && \
		install -D -m 644 bin/$$u $(DESTDIR)/lib/systemd/system/$$u || exit 1; done
	for a in volume agent; do install -D -m 755 ocf/hawser/$$a $(DESTDIR)$(OCF_ROOT)/resource.d/hawser/$$a || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/man/man8
	bin/hawser completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/hawser
	bin/hawser man >$(DESTDIR)$(PREFIX)/share/man/man8/hawser.8
	install -m 644 etc/man/hawser-drbd-tools.8 $(DESTDIR)$(PREFIX)/share/man/man8/hawser-drbd-tools.8
	install -d $(DESTDIR)$(PREFIX)/lib/hawser/drbd-compat # never over an installed drbd-utils
	for n in drbdadm drbdsetup drbdadm-84 drbdsetup-84; do ln -sf ../../../sbin/hawser $(DESTDIR)$(PREFIX)/lib/hawser/drbd-compat/$$n || exit 1; done
	install -D -m 644 etc/pacemaker/linbit-drbd.sh $(DESTDIR)$(PREFIX)/share/hawser/linbit-drbd.sh

demo: build ## a replicated volume, written, killed, failed over and verified
	$(GO) build -o bin/demo ./test/demo
	bin/demo --hawser bin/hawser $(DEMOFLAGS)

# A mount namespace that one test makes keeps the mounts of all others busy: those that mount run one by one.
ALONE := ./replicator/export/fuse ./agent/service

test: deps build ## everything that must hold: vet, all tests with the race detector, shell tests, the demo
	$(GO) vet ./...
	$(GO) test -race $(TESTFLAGS) $$($(GO) list ./... | grep -v -e '/test/' $(patsubst ./%,-e '/%$$',$(ALONE)))
	$(GO) test -race $(TESTFLAGS) -p 1 $(ALONE) ./test/...
	@for t in $$(find test ocf -name '*_test.sh' 2>/dev/null); do echo "$$t"; sh "$$t" || exit 1; done
	$(GO) build -o bin/demo ./test/demo
	bin/demo --hawser bin/hawser $(DEMOFLAGS)

test-vm: deps ## the tests with real kernels, in virtual machines: minutes, and root
	HAWSER_TEST_VM=1 $(GO) test -count=1 -p 1 -timeout 60m ./test/vm ./test/kernelpeer

test-pacemaker: deps ## everything under real Pacemaker and Corosync (a part of it is in test): half an hour, and root
	HAWSER_TEST_PACEMAKER=long $(GO) test -count=1 -timeout 60m -v ./test/pacemaker

check: lint shell ## formatting, vet, linters, shell scripts
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run: make fmt"; exit 1; }
	$(GO) vet ./...

lint: $(LINT)
	$(LINT) run ./...

$(LINT):
	@mkdir -p bin
	@if [ -x "$$($(GO) env GOPATH)/bin/golangci-lint" ]; then ln -sf "$$($(GO) env GOPATH)/bin/golangci-lint" $(LINT); \
	else GOBIN=$(CURDIR)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION); fi

shell:
	@git ls-files | while read -r f; do case $$(head -c 64 "$$f" | head -n 1) in '#!/bin/sh'*|'#!/usr/bin/env sh'*) echo "$$f";; esac; done | \
		xargs -r shellcheck -s sh -x -P SCRIPTDIR

bench: DEBS += $(BENCH_DEBS)
bench: deps build ## speed beside other programs, as ratios: BENCHFLAGS=-long, PEERS=, CELLS= (docs/performance.md)
	$(GO) build -o bin/bench ./test/bench
	bin/bench -hawser bin/hawser -tsv bin/bench.tsv -peers '$(PEERS)' -cells '$(CELLS)' $(BENCHFLAGS)

fuzz: ## every fuzz target for FUZZTIME
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' "$$p" 2>/dev/null | grep '^Fuzz'); do \
			echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$p" || exit 1; done; done

fmt: ## gofmt
	gofmt -w $$(git ls-files '*.go')

deps: ## the programs that tests call, by apt, if any is missing
	@missing=$$(for p in $(DEBS); do dpkg-query -W -f '$${db:Status-Status}' "$$p" 2>/dev/null | grep -qx installed || echo "$$p"; done); \
	[ -z "$$missing" ] || { \
		command -v apt-get >/dev/null || { echo "install these programs: $$missing"; exit 1; }; \
		if [ "$$(id -u)" -eq 0 ]; then su=; elif command -v sudo >/dev/null; then su=sudo; else echo "as root: apt-get install $$missing"; exit 1; fi; \
		echo "installing: "$$missing; \
		$$su env DEBIAN_FRONTEND=noninteractive sh -c "test -e /usr/sbin/policy-rc.d || { trap 'rm -f /usr/sbin/policy-rc.d' EXIT; \
				printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; }; \
			apt-get -q -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $$(echo $$missing) || \
			{ apt-get -q -o DPkg::Lock::Timeout=600 update && apt-get -q -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $$(echo $$missing); }"; }

clean: ## what make has made
	rm -rf bin dist
