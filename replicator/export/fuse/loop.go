package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
)

// sysBlock is where the kernel describes block devices.
const sysBlock = "/sys/block"

// loopDevice is the N of /dev/loopN.
type loopDevice int

func (l loopDevice) path() string { return "/dev/loop" + strconv.Itoa(int(l)) }
func (l loopDevice) sys(rel string) string {
	return filepath.Join(sysBlock, "loop"+strconv.Itoa(int(l)), rel)
}

// attachLoop puts a free loop device over file, with direct I/O. The descriptor of the file is closed again: a
// process that kept its own FUSE file open could not exit without itself.
func attachLoop(file string, blockSize int) (loopDevice, error) {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", file, err)
	}
	defer unix.Close(fd)
	ctl, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/loop-control: %w", err)
	}
	defer unix.Close(ctl)
	const triesMax = 64 // others may take the free device between the two calls
	for range triesMax {
		n, err := unix.IoctlRetInt(ctl, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return 0, fmt.Errorf("find a free loop device: %w", err)
		}
		l := loopDevice(n)
		switch err := l.configure(fd, file, blockSize); {
		case errors.Is(err, unix.EBUSY):
			continue
		case err != nil:
			return 0, err
		}
		return l, nil
	}
	return 0, fmt.Errorf("attach %s: %d free loop devices in a row were taken by others", file, triesMax)
}

func (l loopDevice) configure(fd int, file string, blockSize int) error {
	dev, err := unix.Open(l.path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", l.path(), err)
	}
	defer unix.Close(dev)
	c := unix.LoopConfig{Fd: uint32(fd), Size: uint32(blockSize)}
	c.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	copy(c.Info.File_name[:len(c.Info.File_name)-1], file)
	if err := unix.IoctlLoopConfigure(dev, &c); err != nil {
		return fmt.Errorf("configure %s for %s: %w", l.path(), file, err)
	}
	if dio, err := os.ReadFile(l.sys("loop/dio")); err == nil && strings.TrimSpace(string(dio)) != "1" {
		return errors.Join(fmt.Errorf("configure %s for %s: the kernel refuses direct I/O", l.path(), file),
			unix.IoctlSetInt(dev, unix.LOOP_CLR_FD, 0))
	}
	return nil
}

// tune sets what the loop driver cannot know. A discard arrives as a hole that must read back as zeroes (see
// Fallocate); where zeroes cost as much as data, discards are switched off, or mkfs would write the whole disk.
func (l loopDevice) tune(limits export.Limits) error {
	var errs []error
	if !limits.FastZero {
		errs = append(errs, os.WriteFile(l.sys("queue/discard_max_bytes"), []byte("0"), 0))
	} else if most, err := os.ReadFile(l.sys("queue/discard_max_hw_bytes")); err != nil {
		errs = append(errs, err)
	} else { // a former user of this device may have switched them off
		errs = append(errs, os.WriteFile(l.sys("queue/discard_max_bytes"), most, 0))
	}
	rotational := "0"
	if limits.Rotational {
		rotational = "1"
	}
	errs = append(errs, os.WriteFile(l.sys("queue/rotational"), []byte(rotational), 0))
	return errors.Join(errs...)
}

func (l loopDevice) setCapacity() error {
	dev, err := unix.Open(l.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", l.path(), err)
	}
	defer unix.Close(dev)
	if err := unix.IoctlSetInt(dev, unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("set capacity of %s: %w", l.path(), err)
	}
	return nil
}

// clear detaches the loop device from its file. With exclusive it is EBUSY while a file system or another
// device owns it. When other openers remain, the kernel detaches it with the last of them.
func (l loopDevice) clear(exclusive bool) error {
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if exclusive {
		flags |= unix.O_EXCL
	}
	dev, err := unix.Open(l.path(), flags, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", l.path(), err)
	}
	defer unix.Close(dev)
	if err := unix.IoctlSetInt(dev, unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("clear %s: %w", l.path(), err)
	}
	return nil
}

// backing is the path of the file behind the device, or "" when it is free.
func (l loopDevice) backing() string {
	b, err := os.ReadFile(l.sys("loop/backing_file"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

func (l loopDevice) attached() bool { return l.backing() != "" }

// loopsUnder lists the loop devices whose file is on the mount. It asks sysfs only, which needs no answer from
// the file system.
func loopsUnder(mountPoint string) ([]loopDevice, error) {
	entries, err := os.ReadDir(sysBlock)
	if err != nil {
		return nil, err
	}
	var found []loopDevice
	for _, e := range entries {
		num, ok := strings.CutPrefix(e.Name(), "loop")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(num)
		if err != nil {
			continue
		}
		if strings.HasPrefix(loopDevice(n).backing(), mountPoint+"/") {
			found = append(found, loopDevice(n))
		}
	}
	return found, nil
}
