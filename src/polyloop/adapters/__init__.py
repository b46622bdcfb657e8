"""The adapters that come with the library. Opt-in: `import polyloop` imports none of them."""
