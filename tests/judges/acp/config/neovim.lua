require("codecompanion").setup({
  adapters = {
    acp = {
      planck = function()
        return require("codecompanion.adapters").extend("goose", {
          name = "planck",
          formatted_name = "Planck",
          commands = { default = { "planck", "acp" } },
        })
      end,
    },
  },
  interactions = { chat = { adapter = "planck" } },
})
