// Package boot makes the guest the first process of a virtual machine. The kernel starts it from the initramfs, where
// it loads the modules that the machine needs, mounts the root file system from a disk, reads the configuration of the
// guest from another disk, and becomes the guest, with the machine's serial port as the stream to the host.
//
// If that fails, it writes the reason to the console, where the host looks for it, and waits to be ended.
package boot
