"""The adapters that come with the library. Opt-in: `import polyloop` imports none of them.

Each has a module of its own. One that needs another package has an extra of its name: `pip install 'polyloop[openai]'`.
"""
